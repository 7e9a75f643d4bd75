# needs: python3
cat >work.py <<'M'
import concurrent.futures, errno, fcntl, json, mmap, multiprocessing, os, pathlib, shutil, sqlite3, stat, subprocess, sys, tempfile, threading
from multiprocessing import shared_memory

def square(x):
    return x * x

def produce(queue, lock, counter, n):
    for i in range(n):
        with lock:
            counter.value += 1
        queue.put(i)

def fill(name):
    memory = shared_memory.SharedMemory(name=name)
    memory.buf[:5] = b"hello"
    memory.close()

def main():
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print("executor", sum(pool.map(square, range(100))))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print("threads", list(pool.map(lambda n: pathlib.Path(f"t{n}").write_text(str(n)), range(8))))
    with multiprocessing.Pool(2) as pool:
        print("pool", pool.map(square, range(5)))
    for method in "fork", "spawn", "forkserver":
        if method == "forkserver":
            continue  # it listens on a UNIX socket, which a restricted network has not
        context = multiprocessing.get_context(method)
        queue, lock, counter = context.Queue(), context.Lock(), context.Value("i", 0)
        workers = [context.Process(target=produce, args=(queue, lock, counter, 50)) for _ in range(2)]
        for worker in workers:
            worker.start()
        got = sorted(queue.get() for _ in range(100))
        for worker in workers:
            worker.join()
        print(method, counter.value, got[:4], [worker.exitcode for worker in workers])
    memory = shared_memory.SharedMemory(create=True, size=4096)
    worker = multiprocessing.Process(target=fill, args=(memory.name,))
    worker.start()
    worker.join()
    print("shared memory", bytes(memory.buf[:5]))
    memory.close()
    memory.unlink()
    print("semaphore", multiprocessing.Semaphore(2).acquire(), multiprocessing.Event().is_set(), multiprocessing.Barrier(1).wait())

    database = sqlite3.connect("wal.db")
    print("journal", database.execute("pragma journal_mode=wal").fetchone())
    database.execute("create table t (n integer primary key, text)")
    with database:
        database.executemany("insert into t values (?, ?)", [(i, "x" * i) for i in range(500)])
    other = sqlite3.connect("wal.db")
    print("rows", other.execute("select count(*), sum(length(text)) from t").fetchone())
    print("beside it", sorted(os.listdir(".")).count("wal.db-wal"), sorted(os.listdir(".")).count("wal.db-shm"))
    other.close()
    database.execute("pragma wal_checkpoint(truncate)")
    database.execute("vacuum")
    database.close()

    for setting in os.setxattr, :
        try:
            setting("work.py", "user.note", b"value")
            print("xattr", os.getxattr("work.py", "user.note"), os.listxattr("work.py"))
            os.setxattr("work.py", "user.gone", b"")
            os.removexattr("work.py", "user.gone")
        except OSError as e:
            print("xattr", errno.errorcode[e.errno])
    nameless = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(nameless, b"once nameless\n")
    here = os.open(".", os.O_RDONLY)
    os.link(f"/proc/self/fd/{nameless}", "named", src_dir_fd=here)  # with a descriptor it follows links
    os.close(nameless)
    print("named", open("named").read(), oct(os.stat("named").st_mode), os.stat("named").st_nlink)

    with open("mapped", "w+b") as f:
        f.truncate(8192)
        with mmap.mmap(f.fileno(), 8192) as mapped:
            mapped[4096:4101] = b"pages"
            mapped.flush()
    with open("mapped", "rb") as f:
        print("mapped", f.read().count(b"pages"))
    with open("lock", "w") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        code = "import fcntl,sys\ntry:\n fcntl.lockf(open('lock','w'), fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError as e: print('locked', e.errno)"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")

    with tempfile.TemporaryDirectory() as d:
        print("temporary", os.path.isdir(d), oct(os.stat(d).st_mode))
        with tempfile.NamedTemporaryFile(dir=d) as f, tempfile.TemporaryFile() as g:
            f.write(b"x"); g.write(b"y")
            print("modes", oct(os.stat(f.name).st_mode), oct(os.fstat(g.fileno()).st_mode))
    os.makedirs("tree/a/b", exist_ok=True)
    os.makedirs("tree/a/b", exist_ok=True)
    pathlib.Path("tree/a/b/file").write_text("text")
    os.symlink("file", "tree/a/b/link")
    os.utime("tree/a/b/file", (1000000000, 1000000001))
    os.chmod("tree/a/b/file", 0o604)
    shutil.copytree("tree", "copied", symlinks=True)
    shutil.move("copied", "moved")
    shutil.make_archive("packed", "gztar", "tree")
    os.rename("moved/a/b/file", "moved/a/renamed")
    os.replace("moved/a/renamed", "moved/a/b/link")
    print("tree", sorted(str(p) for p in pathlib.Path("moved").rglob("*")))
    shutil.rmtree("tree")
    dir = os.open("moved", os.O_RDONLY)
    os.mkdir("below", dir_fd=dir)
    os.rename("below", "beneath", src_dir_fd=dir, dst_dir_fd=dir)
    print("by descriptor", sorted(os.listdir(dir)), stat.S_ISDIR(os.stat("beneath", dir_fd=dir).st_mode))
    os.mkfifo("pipe")
    reader = threading.Thread(target=lambda: print("fifo", open("pipe").read()))
    reader.start()
    with open("pipe", "w") as f:
        f.write("through")
    reader.join()
    for attempt in lambda: open("none"), lambda: os.mkdir("moved"), lambda: os.rmdir("moved"), lambda: os.unlink("moved"), \
            lambda: open("moved", "w"), lambda: open("named/below"), lambda: os.rename("moved", "moved/a/in"), lambda: open("x" * 300, "w"), \
            lambda: os.symlink("a", "named"), lambda: os.link("none", "new"), lambda: open("", "w"), lambda: os.readlink("named"):
        try:
            attempt()
            print("no error")
        except OSError as e:
            print(errno.errorcode[e.errno])

if __name__ == "__main__":
    main()
M
touch -d 2024-01-02T03:04:05Z work.py
python3 work.py
mkdir package
echo 'name = "imported"' >package/__init__.py
touch -d 2024-01-02T03:04:05Z package/__init__.py
PYTHONPYCACHEPREFIX= python3 -c 'import package; print(package.name, package.__spec__.has_location)'
PYTHONPYCACHEPREFIX= python3 -m compileall -q package
ls package/__pycache__ | wc -l
