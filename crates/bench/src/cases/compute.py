# What programs do all day, once each; times in milliseconds. The argument is a directory on the disk.
import json
import os
import subprocess
import sys
import time


def start():
    subprocess.run([sys.executable, "-c", "import json, asyncio, ssl"], check=True)


def loop():
    total = 0
    for number in range(2_000_000):
        total += number * number


def look():
    seen = 0
    for place, _, names in os.walk("/usr"):
        for name in names:
            os.lstat(os.path.join(place, name))
            seen += 1
    return seen


def write():
    path = os.path.join(sys.argv[1], "wakeful-bench-%d" % os.getpid())
    try:
        with open(path, "wb") as file:
            for _ in range(64):
                file.write(b"z" * (1 << 20))
            file.flush()
            os.fsync(file.fileno())
    finally:
        os.unlink(path)


took = {}
for name, work in ("python", start), ("loop", loop), ("stat", look), ("write_64", write):
    began = time.perf_counter()
    made = work()
    took[name] = (time.perf_counter() - began) * 1e3
    if name == "stat":
        took["files"] = made
print(json.dumps(took))
