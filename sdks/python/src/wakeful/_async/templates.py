"""Templates: what sandboxes are made of, and how they are built."""

from __future__ import annotations

import os
from typing import Any, AsyncIterator, BinaryIO, Callable, Dict, Mapping, Optional, Sequence, Union

from .. import _address, _archive, types
from .._frames import BuildProgress, Lines, SeenLog, parse
from .._time import AWAY, BUILD, SILENCE, TRANSFER, Backoff, Deadline, Duration, wire
from ..errors import ApiError, BuildFailed, ConnectionFailed, ProtocolError
from . import seam
from .answer import AsyncAnswer
from .connection import AsyncConnection
from .output import passes

PIECE = 256 << 10
UNDER_WAY = ("pending", "building")

Local = Union[str, "os.PathLike[str]", BinaryIO]
Command = Union[str, Sequence[str]]


async def upload(connection: AsyncConnection, file: BinaryIO, timeout: Optional[Duration]) -> types.Upload:
    """Sends what a template is to be built from."""

    def content() -> AsyncIterator[bytes]:
        return seam.file_pieces(file, PIECE)

    headers = {"Content-Type": "application/octet-stream"}
    deadline = Deadline(timeout)
    answer = await connection.send("POST", "/v1/uploads", deadline, content=content, headers=headers)
    return connection.understood(types.Upload.from_wire, answer)


class AsyncTemplates:
    """The templates of a server."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def _path(self, name: str) -> str:
        return _address.joined("v1", "templates", name)

    async def create(
        self,
        name: str,
        *,
        dockerfile: Union[str, os.PathLike[str], None] = None,
        file: str = "Dockerfile",
        target: Optional[str] = None,
        build_args: Optional[Mapping[str, str]] = None,
        image: Optional[str] = None,
        archive: Optional[Local] = None,
        rootfs: Optional[Local] = None,
        debian: Optional[str] = None,
        packages: Sequence[str] = (),
        sandbox: Optional[str] = None,
        snapshot: Optional[str] = None,
        tags: Optional[Sequence[str]] = None,
        description: Optional[str] = None,
        default_size: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        egress: Optional[types.EgressRequest] = None,
        disk_mb: Optional[int] = None,
        io: Optional[types.IoLimitsRequest] = None,
        user: Optional[str] = None,
        workdir: Optional[str] = None,
        start: Optional[Command] = None,
        ready: Optional[Command] = None,
        ready_timeout: Optional[Duration] = None,
        warm: bool = False,
        runtime: Optional[str] = None,
        deadline: Optional[Duration] = TRANSFER,
    ) -> types.Template:
        """Begins to build a template; `wait` waits for its end.

        It is built of one of these: `dockerfile`, a local directory with a Dockerfile (`file`, if it is called otherwise;
        its `.dockerignore` is honoured); `image`, the name of an image in a registry; `archive`, a local file of
        `docker save` or an OCI layout (then `image` names one of several); `rootfs`, a local directory or tar; `debian`,
        a release with `packages`; `sandbox` or `snapshot`, the id of one. With `warm`, what it starts is started once, and
        sandboxes are copies of one in which it was ready.
        """
        source = await self._source(
            dockerfile=dockerfile,
            file=file,
            target=target,
            build_args=build_args,
            image=image,
            archive=archive,
            rootfs=rootfs,
            debian=debian,
            packages=packages,
            sandbox=sandbox,
            snapshot=snapshot,
            deadline=deadline,
        )
        body: Dict[str, Any] = {"name": name, "source": source}
        given: Dict[str, Any] = {
            "tags": None if tags is None else list(tags),
            "description": description,
            "default_size": default_size,
            "env": None if env is None else dict(env),
            "egress": egress,
            "disk_mb": disk_mb,
            "io": io,
            "user": user,
            "workdir": workdir,
            "start": start if start is None or isinstance(start, str) else list(start),
            "ready": ready if ready is None or isinstance(ready, str) else list(ready),
            "ready_timeout": None if ready_timeout is None else wire(ready_timeout),
            "warm": warm or None,
            "runtime": runtime,
        }
        body.update({field: value for field, value in given.items() if value is not None})
        made = types.Template.from_wire
        return await self._connection.call("POST", "/v1/templates", made, deadline, body=body, once=True)

    async def get(self, name: str) -> types.Template:
        """One of them, by name, `name:tag` or id."""
        return await self._connection.call("GET", self._path(name), types.Template.from_wire)

    async def list(self) -> AsyncIterator[types.Template]:
        """All of them, by name."""
        found = await self._connection.call("GET", "/v1/templates", types.TemplateList.from_wire)
        for template in found.templates:
            yield template

    async def delete(self, name: str) -> None:
        """Removes one; sandboxes that were made of it stay."""
        await self._connection.do("DELETE", self._path(name))

    async def rebuild(self, name: str, *, upload: Optional[str] = None) -> types.Template:
        """Builds it again: of what it was built from, or of another upload. Sandboxes that exist are not disturbed."""
        body = {} if upload is None else {"upload": upload}
        return await self._connection.call("POST", f"{self._path(name)}/rebuild", types.Template.from_wire, body=body)

    async def cancel(self, name: str) -> types.Template:
        """Ends the build that is under way."""
        return await self._connection.call("POST", f"{self._path(name)}/cancel", types.Template.from_wire)

    async def logs(
        self, name: str, follow: bool = False, *, timeout: Optional[Duration] = BUILD
    ) -> AsyncIterator[BuildProgress]:
        """The log of its last build; with `follow` until that ends.

        A log that breaks off is read on. A build that a restart of the server begins again tells its log again too.
        """
        deadline, backoff, seen = Deadline(timeout), Backoff(AWAY), SeenLog()
        while True:
            wait: Optional[float] = None
            try:
                query = [("follow", "true")] if follow else []
                response = await self._connection.open(
                    "GET", f"{self._path(name)}/logs", deadline, query=query, silence=SILENCE
                )
                lines = AsyncAnswer(response, deadline, Lines())
                seen.rewind()
                try:
                    while True:
                        line = await lines.next()
                        raw = None if line is None else parse(line)
                        if raw is None or raw.get("type") != "progress":
                            break
                        backoff.reset()
                        progress = progress_line(raw)
                        if seen.is_new(progress):
                            yield progress
                finally:
                    await lines.aclose()
                # A server that goes down ends the log of a build that it will begin again.
                if not follow or (await self.get(name)).status not in UNDER_WAY:
                    return
                wait = backoff.next()
            except (ConnectionFailed, ApiError) as error:
                wait = backoff.next() if passes(error) else None
                if wait is None:
                    raise
            if wait is None:
                raise ConnectionFailed(f"the build of {name} goes on, but its log ends again and again")
            await seam.sleep(deadline.remaining(wait) or 0)

    async def wait(
        self,
        name: str,
        *,
        timeout: Optional[Duration] = BUILD,
        on_progress: Optional[Callable[[BuildProgress], object]] = None,
    ) -> types.Template:
        """Waits until its build has ended, and tells how it goes.

        Raises BuildFailed if it failed or was cancelled.
        """
        async for progress in self.logs(name, follow=True, timeout=timeout):
            if on_progress is not None:
                on_progress(progress)
        template = await self.get(name)
        problem = template.build_error
        if problem is not None:
            raise BuildFailed(template.name, problem.step, problem.line, problem.detail)
        if template.status != "ready":
            raise BuildFailed(template.name, "", None, f"the template is {template.status}")
        return template

    async def _source(
        self,
        *,
        dockerfile: Union[str, os.PathLike[str], None],
        file: str,
        target: Optional[str],
        build_args: Optional[Mapping[str, str]],
        image: Optional[str],
        archive: Optional[Local],
        rootfs: Optional[Local],
        debian: Optional[str],
        packages: Sequence[str],
        sandbox: Optional[str],
        snapshot: Optional[str],
        deadline: Optional[Duration],
    ) -> types.TemplateSourceRequest:
        """What the template is built of; local files are sent first."""
        named = image if archive is None else archive
        if sum(one is not None for one in (dockerfile, named, rootfs, debian, sandbox, snapshot)) != 1:
            raise ValueError("a template is built of one of dockerfile, image, archive, rootfs, debian, sandbox, snapshot")
        if dockerfile is not None:
            packed = await seam.blocking(_archive.packed, os.fspath(dockerfile), file)
            try:
                sent = await self._send(packed, deadline)
            finally:
                packed.close()
            source: types.TemplateSourceDockerfileRequest = {"kind": "dockerfile", "upload": sent, "dockerfile": file}
            if target is not None:
                source["target"] = target
            if build_args is not None:
                source["build_args"] = dict(build_args)
            return source
        if archive is not None:
            return {"kind": "image", "upload": await self._send(archive, deadline), "reference": image}
        if image is not None:
            return {"kind": "image", "reference": image}
        if rootfs is not None:
            return {"kind": "rootfs", "upload": await self._send(rootfs, deadline)}
        if debian is not None:
            return {"kind": "debian", "suite": debian, "packages": list(packages)}
        if sandbox is not None:
            return {"kind": "sandbox", "sandbox_id": sandbox}
        return {"kind": "sandbox", "snapshot_id": snapshot}

    async def _send(self, local: Local, timeout: Optional[Duration]) -> str:
        if not isinstance(local, (str, os.PathLike)):
            return (await upload(self._connection, local, timeout)).id
        file = await seam.blocking(_archive.opened, os.fspath(local))
        try:
            return (await upload(self._connection, file, timeout)).id
        finally:
            file.close()


def progress_line(raw: Mapping[str, Any]) -> BuildProgress:
    """A line of a log.

    Raises ProtocolError if it is none.
    """
    try:
        return BuildProgress.from_wire(raw)
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"a line of a log that cannot be understood: {error!r}") from error
