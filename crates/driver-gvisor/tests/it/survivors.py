"""Holds state of one kind inside a sandbox, and tells over TCP 9000 whether it is still what it was.

One line of JSON each way: {"op": "hold" | "check" | ..., "what": NAME}. A check raises, or says what went on since the last
one, and prepares the next."""
import asyncio, ctypes, fcntl, hashlib, json, mmap, os, pty, random, select, signal, socket, struct, subprocess, sys, threading, time, traceback, urllib.request

libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})      # in every thread: it is read from a descriptor
HELD, SURVIVORS = {}, {}


def survivor(cls):
    SURVIVORS[cls.__name__] = cls
    return cls


def soon(true, what):
    """Waits until it is so."""
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.01)


@survivor
class memory:
    def __init__(self):
        self.bytes = bytearray(os.urandom(1 << 20) * 24)
        self.digest = hashlib.sha256(self.bytes).hexdigest()
        self.token = {"nested": [os.urandom(8).hex()]}
        self.known = json.dumps(self.token)

    def check(self):
        assert hashlib.sha256(self.bytes).hexdigest() == self.digest
        assert json.dumps(self.token) == self.known
        self.bytes[random.randrange(len(self.bytes))] ^= 1
        self.digest = hashlib.sha256(self.bytes).hexdigest()


@survivor
class threads:
    def __init__(self):
        self.counts, self.lock, self.turn = [0] * 8, threading.Lock(), threading.Condition()
        self.said = []
        for n in range(8):
            threading.Thread(target=self.count, args=(n,), daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()

    def count(self, n):
        while True:
            with self.lock:
                self.counts[n] += 1
            time.sleep(0.01)

    def listen(self):
        with self.turn:
            while True:
                self.turn.wait()
                self.said.append(threading.get_ident())

    def check(self):
        before = list(self.counts)
        soon(lambda: all(now > then for now, then in zip(self.counts, before)), "every thread goes on")
        known = len(self.said)
        def heard():
            with self.turn:
                self.turn.notify_all()
            return len(self.said) > known
        soon(heard, "one that waits is woken")


@survivor
class children:
    CODE = "import os,sys\nn=0\nfor line in sys.stdin:\n n+=1\n print(os.getpid(), os.getcwd(), os.getuid(), n, flush=True)"

    def __init__(self):
        os.makedirs("/var/tmp/where", exist_ok=True)
        os.chmod("/var/tmp/where", 0o777)
        self.child = subprocess.Popen([sys.executable, "-c", self.CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, cwd="/var/tmp/where", user=1000, group=1000)
        self.mortal = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.dead = subprocess.Popen(["false"])
        soon(lambda: open("/proc/%d/stat" % self.dead.pid).read().split()[2] == "Z", "it ends")
        self.asked = 0

    def check(self):
        self.asked += 1
        self.child.stdin.write("\n"); self.child.stdin.flush()
        said = self.child.stdout.readline().split()
        assert said == [str(self.child.pid), "/var/tmp/where", "1000", str(self.asked)], said
        if self.asked == 1:
            assert self.dead.wait(5) == 1, "the status of one that ended before is kept"
        assert self.mortal.poll() is None
        if self.asked == 3:
            os.killpg(self.mortal.pid, signal.SIGTERM)
            assert self.mortal.wait(5) == -signal.SIGTERM


@survivor
class terminal:
    """A shell on a pty of its own."""
    def __init__(self):
        self.token, self.asked = os.urandom(8).hex(), 0
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.size = struct.pack("HHHH", 37, 91, 0, 0)
        fcntl.ioctl(self.fd, 0x5414, self.size)
        self.say("kept=%s; count=0; echo re''ady" % self.token, "ready")
        self.jobs()

    def say(self, line, until):
        os.write(self.fd, line.encode() + b"\n")
        said, end = b"", time.monotonic() + 20
        while until.encode() not in said:
            assert time.monotonic() < end, said
            if select.select([self.fd], [], [], 1)[0]:
                said += os.read(self.fd, 4096)

    def check(self):
        self.asked += 1
        assert fcntl.ioctl(self.fd, 0x5413, b"\0" * 8) == self.size, "the size of the window"
        self.say("count=$((count+1)); echo \"<$kept-$count-$(stty size)>\"", "<%s-%d-37 91>" % (self.token, self.asked))
        self.jobs()

    def jobs(self):
        """Job control. (An interrupt typed at a terminal is no signal in this engine; the agent sends it for its own.)"""
        self.say("sleep 1000 & kill %1; wait %1; echo \"<$?>\"", "<143>")


@survivor
class tmux:
    ENV = {**os.environ, "LD_LIBRARY_PATH": "/opt/tmux", "TERM": "xterm", "LC_ALL": "C.UTF-8", "TERMINFO": "/usr/share/terminfo"}

    def run(self, *words):
        done = subprocess.run(["/opt/tmux/tmux", "-f", "/dev/null", *words], env=self.ENV, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done
        return done.stdout

    def __init__(self):
        self.token, self.asked = os.urandom(8).hex(), 0
        self.run("new-session", "-d", "-s", "kept", "-x", "90", "-y", "30", "bash --norc --noprofile")
        self.run("split-window", "-t", "kept", "bash --norc --noprofile")
        self.run("send-keys", "-t", "kept.0", "kept=%s; count=0" % self.token, "Enter")

    def check(self):
        self.asked += 1
        self.run("send-keys", "-t", "kept.0", "count=$((count+1)); echo \"<$kept-$count>\"", "Enter")
        soon(lambda: "<%s-%d>" % (self.token, self.asked) in self.run("capture-pane", "-p", "-t", "kept.0"), "the shell answers")
        assert len(self.run("list-panes", "-t", "kept").splitlines()) == 2


@survivor
class listeners:
    def __init__(self):
        self.tcp = socket.socket(); self.tcp.bind(("127.0.0.1", 7001)); self.tcp.listen(4)
        self.udp = socket.socket(type=socket.SOCK_DGRAM); self.udp.bind(("127.0.0.1", 7002))
        self.path = socket.socket(socket.AF_UNIX); self.path.bind("/root/listener"); self.path.listen(4)
        self.abstract = socket.socket(socket.AF_UNIX); self.abstract.bind("\0listener"); self.abstract.listen(4)
        for one in (self.tcp, self.udp, self.path, self.abstract):
            one.settimeout(10)

    def check(self):
        for one, family, address in ((self.tcp, socket.AF_INET, ("127.0.0.1", 7001)), (self.path, socket.AF_UNIX, "/root/listener"),
                                     (self.abstract, socket.AF_UNIX, "\0listener")):
            with socket.socket(family) as dialler:
                dialler.settimeout(10); dialler.connect(address)
                accepted, _ = one.accept()
                with accepted:
                    accepted.sendall(b"there"); assert dialler.recv(9) == b"there", address
        with socket.socket(type=socket.SOCK_DGRAM) as dialler:
            dialler.sendto(b"there", ("127.0.0.1", 7002)); assert self.udp.recv(9) == b"there"


@survivor
class connections:
    """Inside, with bytes in flight both ways."""
    def __init__(self):
        server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(1)
        a = socket.create_connection(server.getsockname()); b, _ = server.accept(); server.close()
        self.pairs = [(a, b), socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
        self.wait, self.flight = socket.socketpair(), []
        self.heard = []
        threading.Thread(target=lambda: [self.heard.append(d) for d in iter(lambda: self.wait[0].recv(64), b"")], daemon=True).start()
        self.send()

    def send(self):
        self.flight = [(os.urandom(3000), os.urandom(3000)) for _ in self.pairs]
        for (a, b), (there, back) in zip(self.pairs, self.flight):
            a.settimeout(10); b.settimeout(10); a.sendall(there); b.sendall(back)

    def check(self):
        for (a, b), (there, back) in zip(self.pairs, self.flight):
            for end, bytes in ((b, there), (a, back)):
                got = b""
                while len(got) < len(bytes): got += end.recv(4096)
                assert got == bytes, (end, len(got))
        word = os.urandom(4)
        self.wait[1].sendall(word)
        soon(lambda: word in self.heard, "a thread that waits for it is woken")
        self.send()


@survivor
class pipes:
    def __init__(self):
        self.pipe = os.pipe()
        os.mkfifo("/root/fifo")
        r = os.open("/root/fifo", os.O_RDONLY | os.O_NONBLOCK)
        self.fifo = (r, os.open("/root/fifo", os.O_WRONLY))
        # A pipeline of three that is never done.
        self.line = subprocess.Popen("cat | cat | cat", shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.fill()

    def fill(self):
        self.flight = os.urandom(30000)
        os.write(self.pipe[1], self.flight); os.write(self.fifo[1], self.flight[:4000])
        self.line.stdin.write(self.flight[:2000]); self.line.stdin.flush()

    def check(self):
        assert os.read(self.pipe[0], 65536) == self.flight
        assert os.read(self.fifo[0], 65536) == self.flight[:4000]
        assert self.line.stdout.read(2000) == self.flight[:2000]
        self.fill()


@survivor
class files:
    """Open ones: offset, appending, locks, a shared mapping, one that was renamed meanwhile."""
    def __init__(self):
        os.makedirs("/root/files")
        self.n = 0
        self.open = open("/root/files/open", "w+b", buffering=0); self.open.write(b"0123456789"); self.open.seek(4)
        self.append = os.open("/root/files/append", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.lock = open("/root/files/lock", "w"); fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.range = open("/root/files/range", "w"); fcntl.lockf(self.range, fcntl.LOCK_EX, 10, 5)
        with open("/root/files/map", "wb") as f: f.write(b"\0" * 65536)
        self.mapped = open("/root/files/map", "r+b"); self.map = mmap.mmap(self.mapped.fileno(), 65536)
        self.map[100:104] = b"n000"
        self.renamed = open("/root/files/old", "w+b", buffering=0); self.renamed.write(b"moved"); os.rename("/root/files/old", "/root/files/new")
        self.dir = os.open("/root/files", os.O_RDONLY)

    def locked(self, name, how):
        code = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry: %s\nexcept OSError: sys.exit(9)" % how
        return subprocess.run([sys.executable, "-c", code, "/root/files/" + name]).returncode == 9

    def check(self):
        assert self.open.read(2) == b"45" and self.open.tell() == 6; self.open.seek(4)
        os.write(self.append, b"."); self.n += 1
        assert open("/root/files/append").read() == "." * self.n
        assert self.locked("lock", "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)")
        assert self.locked("range", "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7)")
        assert not self.locked("range", "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 50)")
        assert self.map[100:104] == b"n%03d" % (self.n - 1); self.map[100:104] = b"n%03d" % self.n
        assert open("/root/files/map", "rb").read()[100:104] == b"n%03d" % self.n
        self.renamed.seek(0); assert self.renamed.read() == b"moved" and os.path.exists("/root/files/new")
        assert os.readlink("/proc/self/fd/%d" % self.renamed.fileno()) == "/root/files/new"
        assert "append" in os.listdir(self.dir)
        fd = os.open("made-%d" % self.n, os.O_CREAT | os.O_WRONLY, dir_fd=self.dir); os.close(fd)


@survivor
class tmpfs:
    def __init__(self):
        self.files = {}
        for dir in ("/tmp", "/dev/shm", "/run"):
            name = dir + "/deep/er"; os.makedirs(name); self.files[name + "/file"] = os.urandom(100000)
            with open(name + "/file", "wb") as f: f.write(self.files[name + "/file"])
            os.symlink("file", name + "/link"); os.chmod(name + "/file", 0o640); os.chown(name + "/file", 5, 6)
        self.gone = open("/tmp/gone", "w+b"); self.gone.write(b"ghost"); self.gone.flush(); os.unlink("/tmp/gone")

    def check(self):
        for name, content in self.files.items():
            assert open(name, "rb").read() == content and os.readlink(name[:-4] + "link") == "file", name
            stat = os.stat(name); assert (stat.st_mode & 0o777, stat.st_uid, stat.st_gid) == (0o640, 5, 6), name
        self.gone.seek(0); assert self.gone.read() == b"ghost", "a deleted file that is open"


@survivor
class memfd:
    def __init__(self):
        self.fd = os.memfd_create("kept", os.MFD_ALLOW_SEALING)
        self.bytes = os.urandom(200000); os.write(self.fd, self.bytes); os.lseek(self.fd, 17, os.SEEK_SET)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.map = mmap.mmap(self.fd, len(self.bytes)); self.private = mmap.mmap(-1, 1 << 20); self.private[5:9] = b"anon"

    def check(self):
        assert os.lseek(self.fd, 0, os.SEEK_CUR) == 17 and os.pread(self.fd, len(self.bytes), 0) == self.bytes == self.map[:]
        assert fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK
        try: os.ftruncate(self.fd, 5); raise AssertionError("the seal is gone")
        except PermissionError: pass
        assert self.private[5:9] == b"anon"
        self.map[0:4] = os.urandom(4); self.bytes = self.map[:]


@survivor
class inotify:
    def __init__(self):
        self.n, self.watched = 0, []
        for dir in ("/tmp/watched", "/root/watched"):
            os.makedirs(dir)
            fd = libc.inotify_init1(os.O_NONBLOCK)
            assert fd >= 0 and libc.inotify_add_watch(fd, dir.encode(), 0x100) >= 0
            self.watched.append((dir, fd))

    def check(self):
        self.n += 1
        for dir, fd in self.watched:
            name = "new-%d" % self.n
            open("%s/%s" % (dir, name), "w").close()
            assert select.select([fd], [], [], 10)[0], "nothing is told of " + dir
            assert name.encode() in os.read(fd, 4096), dir


@survivor
class epoll:
    def __init__(self):
        self.epoll = select.epoll()
        self.pipe, self.pair = os.pipe(), socket.socketpair()
        self.event = libc.eventfd(0, os.O_NONBLOCK)
        assert self.event >= 0
        for fd in (self.pipe[0], self.event): self.epoll.register(fd, select.EPOLLIN)
        self.epoll.register(self.pair[0], select.EPOLLIN | select.EPOLLET)
        self.heard, self.end = [], os.pipe()
        threading.Thread(target=self.wait, daemon=True).start()
        soon(lambda: self.heard, "it waits")
        self.check()

    def wait(self):
        """For a pipe, and for signals by a descriptor; it is never not waiting."""
        other, mask = select.epoll(), (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
        signals = libc.signalfd(-1, mask, os.O_NONBLOCK)
        for fd in (self.end[0], signals): other.register(fd, select.EPOLLIN)
        self.heard.append(b"ready")
        while True:
            for fd, _ in other.poll():
                said = os.read(fd, 128)
                self.heard.append(said if fd != signals else struct.unpack("I", said[:4])[0])

    def check(self):
        assert self.epoll.poll(0) == [], "nothing happens by itself"
        os.write(self.pipe[1], b"x"); self.pair[1].send(b"y"); os.write(self.event, struct.pack("Q", 3))
        wanted, got = {self.pipe[0], self.event, self.pair[0].fileno()}, set()
        def ready():
            got.update(fd for fd, _ in self.epoll.poll(0.1))
            return got == wanted
        soon(ready, "everything is told")
        assert os.read(self.pipe[0], 9) == b"x" and self.pair[0].recv(9) == b"y" and struct.unpack("Q", os.read(self.event, 8)) == (3,)
        assert self.epoll.poll(0) == []
        word = os.urandom(4); os.write(self.end[1], word)
        soon(lambda: word in self.heard, "a thread that waits is woken")
        self.heard.clear(); os.kill(os.getpid(), signal.SIGUSR1)
        soon(lambda: signal.SIGUSR1 in self.heard, "a signal is read")


@survivor
class timers:
    def __init__(self):
        def timerfd(first, every):
            fd = libc.timerfd_create(1, os.O_NONBLOCK)
            spec = struct.pack("llll", int(every), int(every % 1 * 1e9), int(first), int(first % 1 * 1e9))
            assert fd >= 0 and libc.timerfd_settime(fd, 0, spec, None) == 0
            return fd
        self.every, self.far = timerfd(0.05, 0.05), timerfd(3600, 0)
        self.slept, self.alarms = 0, 0
        threading.Thread(target=self.sleeper, daemon=True).start()
        # The kernel's own, which asks no thread to be there.
        self.alarm = subprocess.Popen([sys.executable, "-c", "import itertools,signal\nalarm={signal.SIGALRM}\nsignal.pthread_sigmask(signal.SIG_BLOCK,alarm)\n"
                                       "signal.setitimer(signal.ITIMER_REAL,0.1,0.1)\nfor n in itertools.count():\n signal.sigwait(alarm)\n print(n,flush=True)"],
                                      stdout=subprocess.PIPE, text=True)
        self.alarm.stdout.readline()
        self.started, self.wall = time.monotonic(), time.time()

    def sleeper(self):
        while True:
            time.sleep(0.1); self.slept += 1

    def check(self):
        assert select.select([self.every], [], [], 10)[0] and struct.unpack("Q", os.read(self.every, 8))[0] > 0
        assert not select.select([self.far], [], [], 0)[0], "an hour has not passed"
        slept = self.slept; soon(lambda: self.slept > slept, "one that sleeps wakes up")
        n = int(self.alarm.stdout.readline()); assert int(self.alarm.stdout.readline()) > n
        # Both clocks go on together, and neither goes back.
        mono, wall = time.monotonic() - self.started, time.time() - self.wall
        assert mono > 0 and abs(mono - wall) < 5, (mono, wall)


@survivor
class program:
    """A service as people write them: an event loop with tasks, a server and a subprocess."""
    def __init__(self):
        self.ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.main()), daemon=True).start()
        assert self.ready.wait(20)
        self.said = 0

    async def main(self):
        self.count, self.queue = 0, asyncio.Queue()
        async def tick():
            while True:
                await asyncio.sleep(0.02); self.count += 1
        async def serve(reader, writer):
            self.requests = getattr(self, "requests", 0) + 1
            line = await reader.readline()
            child = await asyncio.create_subprocess_exec("echo", line.decode().strip(), stdout=asyncio.subprocess.PIPE)
            out, _ = await child.communicate()
            writer.write(b"%d %s" % (self.requests, out)); await writer.drain(); writer.close()
        self.task = asyncio.create_task(tick())
        async with await asyncio.start_server(serve, "127.0.0.1", 7080):
            self.ready.set()
            await self.task

    def check(self):
        self.said += 1
        with socket.create_connection(("127.0.0.1", 7080), 10) as c, c.makefile("rwb") as f:
            f.write(b"hello\n"); f.flush(); assert f.read() == b"%d hello\n" % self.said
        count = self.count; soon(lambda: self.count > count, "its tasks go on")


NODE = """
const http = require("http"), { Worker } = require("worker_threads"), { spawn } = require("child_process");
const token = require("crypto").randomBytes(8).toString("hex"), held = Buffer.alloc(8 << 20, token);
let ticks = 0, asked = 0, heard = 0;
setInterval(() => ticks++, 20);
const worker = new Worker('const { parentPort } = require("worker_threads"); let n = 0; parentPort.on("message", () => parentPort.postMessage(++n))', { eval: true });
const child = spawn("cat"); child.stdout.on("data", (data) => heard += data.length);
http.createServer(async (request, answer) => {
  const worked = await new Promise((done) => { worker.once("message", done); worker.postMessage(0); });
  child.stdin.write("x"); asked++;
  answer.end(JSON.stringify({ token, whole: held.equals(Buffer.alloc(8 << 20, token)), ticks, asked, worked, heard, pid: process.pid }));
}).listen(7090, "127.0.0.1");
"""


@survivor
class node:
    """Its loop, a thread of its own, a child on pipes, a server, and what it holds."""
    def __init__(self):
        env = dict(os.environ, LD_LIBRARY_PATH="/opt/node")
        self.process = subprocess.Popen(["/opt/node/node", "-e", NODE], env=env, stdin=subprocess.DEVNULL)
        def up():
            assert self.process.poll() is None, "it has ended"
            try: self.last = self.ask()
            except OSError: return False
            return True
        soon(up, "it listens")

    def ask(self):
        with urllib.request.urlopen("http://127.0.0.1:7090/", timeout=20) as answer: return json.load(answer)

    def check(self):
        now = self.ask()
        assert now["whole"] and (now["token"], now["pid"]) == (self.last["token"], self.last["pid"]), now
        assert now["asked"] == self.last["asked"] + 1 and now["worked"] == self.last["worked"] + 1, now
        self.last = now
        soon(lambda: self.later() > now["ticks"], "its timers go on")
        soon(lambda: self.later(of="heard") >= now["asked"], "its child goes on")

    def later(self, of="ticks"):
        self.last = self.ask(); return self.last[of]


# ---- what other tests ask

def hold(what):
    HELD[what] = SURVIVORS[what]()


def check(what):
    HELD[what].check()


def lines(f):
    """Stays on the line: one answer to each word."""
    HELD["line"] = "open"
    try:
        for line in f:
            f.write("again " + line); f.flush()
        HELD["line"] = "ended"
    except OSError as error:
        HELD["line"] = type(error).__name__


def line():
    return HELD.get("line")


def dial(port, secret=""):
    """What somebody inside gets from a port that is not his."""
    found = []
    for address in ("127.0.0.1", "192.0.0.2"):
        for word in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes.fromhex(secret), os.urandom(200)):
            try:
                with socket.create_connection((address, port), 5) as c:
                    c.settimeout(5)
                    if word: c.sendall(word)
                    found.append("%s bytes" % len(c.recv(4096)))
            except OSError as error:
                found.append(type(error).__name__)
    return sorted(set(found))


def serve(c):
    with c, c.makefile("rw") as f:
        ask = json.loads(f.readline())
        if ask.get("op") == "lines":
            return lines(f)
        try: answer = {"said": globals()[ask.pop("op")](**ask)}
        except BaseException as error:
            answer = {"error": "%s: %s (lines %s)" % (type(error).__name__, error, [at.lineno for at in traceback.extract_tb(error.__traceback__)])}
        f.write(json.dumps(answer) + "\n"); f.flush()


def door():
    server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", 9000)); server.listen(16)
    while True:
        try: c, _ = server.accept()
        except OSError: continue
        threading.Thread(target=serve, args=(c,), daemon=True).start()


door()
