# Changes something in several folders of the home, in each of several ways.
import os, tempfile


def at(name):
    return os.path.join(os.environ["HOME"], name)


open("made", "w").close()
os.makedirs(at(".cache/made/a/b"), exist_ok=True)
open(at(".cache/made/a/b/c"), "a").close()
open(at(".cache/old/file"), "w").close()
if os.path.exists(at(".removed/file")):
    os.remove(at(".removed/file"))
a, b = at(".moved/a"), at(".moved/b")
os.rename(*((a, b) if os.path.exists(a) else (b, a)))
os.utime(at(".times/file"))
if not os.path.exists(at(".run/pipe")):
    os.mkfifo(at(".run/pipe"))
tempfile.mkstemp(dir="/tmp")
open(at(".toolrc"), "a").close()
os.rmdir(tempfile.mkdtemp(prefix="x", dir=at("")))
