
# A place for one sandbox: it maps the golden snapshot's memory, and its disk is a sparse copy.
begin() {
  WORK=$(mktemp -d /tmp/wakeful-baseline.XXXXXX); MEMORY=$GOLDEN/mem; PID=
  cp --sparse=always "$GOLDEN/overlay.ext4" "$WORK/overlay.ext4"
  chown "$ENGINE_UID:$ENGINE_GID" "$WORK"
}

# Ends the engine and removes the place.
finish() {
  [ -z "$PID" ] || { kill -9 "$PID"; wait "$PID"; } 2>/dev/null || :
  rm -rf "$WORK"
}

# An engine has an unprivileged uid and no capabilities; every file is a descriptor.
as_engine() {
  exec setpriv --reuid="$ENGINE_UID" --regid="$ENGINE_GID" --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs env -i LC_ALL=C QEMU_MODULE_DIR=/proc/self/fd/20/modules "$@"
}

# qmp COMMAND [ARGUMENTS]: one command to the monitor; prints the answer.
qmp() {
  python3 - "$WORK/qmp" "$@" <<'END'
import json, socket, sys, time
for _ in range(2000):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        break
    except OSError:
        time.sleep(.005)
f = s.makefile("rw")
f.readline()
for command, arguments in (("qmp_capabilities", "{}"), (sys.argv[2], (sys.argv[3:] or ["{}"])[0])):
    f.write(json.dumps({"execute": command, "arguments": json.loads(arguments)}))
    f.flush()
    while "event" in (answer := json.loads(f.readline())):
        pass
print(json.dumps(answer))
sys.exit("error" in answer)
END
}

# pages save|inject FILE: the pages in which the engine differs from the memory file that it maps privately.
pages() {
  python3 - "$1" "$PID" "$MEMORY" "$2" <<'END'
import os, struct, sys, time
mode, pid, base, path = sys.argv[1:]
inode, size = os.stat(base).st_ino, os.stat(base).st_size
for _ in range(10000):
    lines = [line.split() for line in open(f"/proc/{pid}/maps")]
    found = [(*(int(x, 16) for x in m[0].split("-")), int(m[2], 16)) for m in lines if m[4] == str(inode) and m[1] == "rw-p"]
    if sum(end - start for start, end, _ in found) == size:
        break
    time.sleep(.001)
mem = os.open(f"/proc/{pid}/mem", os.O_RDWR)
if mode == "save":
    with open(path, "wb") as out, open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for start, end, offset in found:
            pagemap.seek(start // 4096 * 8)
            for n, (entry,) in enumerate(struct.iter_unpack("<Q", pagemap.read((end - start) // 4096 * 8))):
                if entry >> 62 and not entry >> 61 & 1:
                    out.write(struct.pack("<Q", n * 4096 + offset) + os.pread(mem, 4096, start + n * 4096))
        out.flush()
        os.fsync(out.fileno())
else:
    with open(path, "rb") as diff:
        while record := diff.read(8 + 4096):
            at = struct.unpack("<Q", record[:8])[0]
            start, _, offset = next(m for m in found if m[2] <= at < m[2] + m[1] - m[0])
            os.pwrite(mem, record[8:], start + at - offset)
END
}

# A suspend: stopped, state and pages to disk, everything synced, then the engine goes.
suspend() {
  qmp stop
  : >"$WORK/dev.state"
  chown "$ENGINE_UID" "$WORK/dev.state"
  qmp xen-save-devices-state "{\"filename\": \"$WORK/dev.state\", \"live\": false}"
  pages save "$WORK/mem.diff"
  sync "$WORK/dev.state" "$WORK/mem.diff" "$WORK/overlay.ext4" "$WORK"
  kill -9 "$PID"
  wait "$PID" 2>/dev/null || :
  PID=
  rm -f "$WORK/qmp" "$WORK/agent"
}

# Waits until the state is loaded.
loaded() {
  until qmp query-status | grep -qE '"(paused|prelaunch)"'; do :; done
}

# Sourced: only the functions.
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0
set -e
trap finish EXIT
begin
TIMEFORMAT='clone    %R s'
time { clone; loaded; qmp cont; }
qmp query-status
sleep 2
TIMEFORMAT='suspend  %R s'
time suspend
TIMEFORMAT='wake     %R s'
time { wake; pages inject "$WORK/mem.diff"; qmp migrate-incoming '{"uri": "fd:26"}'; loaded; qmp cont; }
qmp query-status
