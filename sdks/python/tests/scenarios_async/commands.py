"""Commands and processes."""

from __future__ import annotations

import time
from typing import List

from wakeful import CommandFailed, Exit, Frame, Gap, ProcessNotFound, Stderr, Stdout

from ..world import World
from .support import counted, counting, lines_of, sandbox_of, until


async def scenario_exec(world: World) -> None:
    async with sandbox_of(world, env={"A": "sandbox"}) as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
        assert not result.timed_out and result.signal is None and result.pid > 0 and result.duration < 10
        assert (await sandbox.exec(["printf", "%s|", "a b", "$A"])).stdout == "a b|$A|"
        assert (await sandbox.exec("echo $A", env={"A": "request"})).stdout == "request\n"
        assert (await sandbox.exec("pwd; id -un", workdir="/tmp", user="root")).stdout == "/tmp\nroot\n"
        assert (await sandbox.exec("cat", stdin="ünïcode")).stdout == "ünïcode"
        late = await sandbox.exec("echo begun; sleep 100", timeout=1)
        assert (late.timed_out, late.exit_code, late.signal, late.stdout) == (True, 137, 9, "begun\n")
        killed = await sandbox.exec("kill -TERM $$")
        assert (killed.exit_code, killed.signal) == (143, 15)
        told: List[str] = []
        wrong: List[str] = []
        both = await sandbox.exec("echo 1; echo 2 >&2; exit 4", on_stdout=told.append, on_stderr=wrong.append)
        assert ("".join(told), "".join(wrong)) == ("1\n", "2\n")
        assert (both.stdout, both.stderr, both.exit_code) == ("1\n", "2\n", 4)


async def scenario_exec_check(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        assert (await sandbox.exec("exit 7")).exit_code == 7
        assert (await sandbox.exec("true", check=True)).ok
        with world.raises(CommandFailed) as caught:
            await sandbox.exec("echo why >&2; exit 7", check=True)
        assert (caught.error.result.exit_code, caught.error.result.stderr) == (7, "why\n")
        assert "why" in str(caught.error)


async def scenario_exec_stream(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        # It waits for a file: what came before came while it ran.
        stream = sandbox.stream("echo first; while [ ! -e ~/go ]; do sleep 0.05; done; printf '\\377\\0' >&2; exit 5")
        frames: List[Frame] = []
        async with stream:
            async for frame in stream:
                if not frames:
                    await sandbox.files.write("/home/user/go", b"")
                frames.append(frame)
        first, second, last = frames
        assert isinstance(first, Stdout) and (first.data, first.text) == (b"first\n", "first\n")
        assert isinstance(second, Stderr) and (second.data, second.text) == (b"\xff\x00", "\ufffd\x00")
        assert isinstance(last, Exit) and (last.exit_code, last.signal, last.timed_out) == (5, None, False)
        assert stream.exit_code == 5 and stream.exit == last and stream.pid is not None and stream.seq == last.seq + 1
        assert await sandbox.stream(["sh", "-c", "exit 9"]).wait() == 9


async def scenario_exec_large(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        lines = 600_000
        result = await sandbox.exec(f"seq 1 {lines}")
        assert not result.stdout_truncated
        assert result.stdout.splitlines() == [str(number) for number in range(1, lines + 1)]
        cut = await sandbox.exec("head -c 10000000 /dev/zero | tr '\\0' x; head -c 100 /dev/zero | tr '\\0' y >&2")
        assert (cut.stdout_truncated, cut.stderr_truncated) == (True, False)
        assert (len(cut.stdout), len(cut.stderr)) == (8 << 20, 100)
        size = 0
        async for frame in sandbox.stream("head -c 5000000 /dev/zero | tr '\\0' x"):
            if isinstance(frame, Stdout):
                size += len(frame.data)
            elif isinstance(frame, Gap):
                size += frame.dropped_bytes
        assert size == 5_000_000


async def scenario_processes(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        cat = await sandbox.processes.start("cat; echo end", env={"X": "1"}, workdir="/tmp")
        assert (cat.info.workdir, cat.info.command, cat.info.running) == ("/tmp", "cat; echo end", True)
        assert cat.pid in [process.pid for process in await sandbox.processes.list()]
        assert str(cat.pid) in repr(cat)
        await cat.write_stdin("one\n")
        await cat.write_stdin(b"two\n")
        await cat.close_stdin()
        assert await lines_of(cat.output()) == ["one", "two", "end"]
        assert await cat.wait(timeout=30) == 0
        assert not cat.info.running and cat.info.exit_code == 0
        with world.raises(ProcessNotFound, "process_not_found"):
            await cat.write_stdin("more")
        trap = await sandbox.processes.start("trap 'echo caught; exit 6' USR1; echo ready; while :; do sleep 0.05; done")
        output = trap.output()
        async for _ in output:
            break
        await trap.signal("USR1")
        assert await lines_of(output) == ["caught"] and output.exit_code == 6
        sleeper = await sandbox.processes.start(["sleep", "1000"], keep_awake=True)
        assert sleeper.info.keep_awake
        await sleeper.kill()
        assert await sleeper.wait() == 137
        limited = await sandbox.processes.start("sleep 1000", timeout="300ms")
        assert await limited.wait("1m") == 137
        terminal = await sandbox.processes.start("while sleep 0.05; do stty size; done", pty={"cols": 80, "rows": 24})
        await terminal.resize(132, 50)
        output = terminal.output()
        async with output:
            async for frame in output:
                if isinstance(frame, Stdout) and b"50 132" in frame.data:
                    break
        await terminal.signal(9)
        assert await terminal.wait() == 137
        fed = await sandbox.processes.start("cat", stdin="all of it")
        assert await lines_of(fed.output()) == ["all of it"]
        with world.raises(ProcessNotFound):
            await sandbox.processes.get(999_999)


async def scenario_process_replay(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        process = await sandbox.processes.start(counting(40))
        first = [frame async for frame in process.output()]
        assert await lines_of(process.output()) == counted(40)
        middle = first[len(first) // 2]
        rest = [frame async for frame in process.output(middle.seq)]
        assert rest == first[len(first) // 2 :]
        assert [frame async for frame in process.output(follow=False)] == first
        # More than is kept, of which nobody took any.
        loud = await sandbox.processes.start("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")

        async def ended() -> bool:
            return not (await loud.refresh()).running

        await until(ended)
        began = time.monotonic()
        frames = [frame async for frame in loud.output()]
        gaps = sum(frame.dropped_bytes for frame in frames if isinstance(frame, Gap))
        data = b"".join(frame.data for frame in frames if isinstance(frame, Stdout))
        assert gaps > 0 and gaps + len(data) == 3_000_006 and data.endswith(b"x\nlast\n")
        assert time.monotonic() - began < 30
