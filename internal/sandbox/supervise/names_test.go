package supervise

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// script are calls, one a line: the name of a call and its arguments. A "." stands
// for the working directory as a descriptor.
const script = `
umask 022
mkdir a 755
mkdir a 755
mkdir a/b/ 700
mkdir missing/x 755
mkdir . 755
mkdir .. 755
mkdir / 755
mkdir a/. 755
mkdir file 755
mkdir dangling 755
mkdir dangling/ 755
mkdir "" 755
umask 077
mkdir private 777
mkdir sticky 1777
mknod private/node 100644
umask 002
mknod node 100666
mknod node/ 100666
mknod nodes/ 100666
mknod fifo 10666
mknod socket 140666
mknod dir 40755
mknod odd 70666
symlink target l1
symlink target l1
symlink target l2/
symlink "" l3
symlink a la
symlink la/b lb
symlink file lf
symlink ../sibling up
link file h1
link file h1
link file h2/
link missing h3
link a h4
link lf h5
linkat lf h6 follow
link la/ h7
rename h1 a/h1
rename a/h1 h1
rename missing x
rename a a/b/c
rename file/ f2
rename file f2/
rename a file
rename file a
rename private a
rename a/b private
rename . x
rename x ..
rename2 file h1 noreplace
rename2 file new noreplace
rename2 new a exchange
rename2 a new exchange
rename2 missing a exchange
rename2 new file 8
rename new file
rename la la2
rename la2/ la3
rmdir file
rmdir missing
rmdir .
rmdir a/..
rmdir /
rmdir private/
rmdir la2
unlink a
unlink file/
unlink a/
unlink missing
unlink missing/
unlink .
unlink la2/
unlink la2
unlink h1
chmod file 600
chmod lf 640
chmod missing 600
chmod dangling 600
chmod a 700
chmod a/ 711
chmod file/ 600
fchmodat2 lf 600 nofollow
fchmodat2 fifo 600 0
fchmod file 604
chown file
lchown dangling
chown dangling
chown missing
utimes file 100 200
utimes lf 300 400
lutimes dangling 500 600
utimes missing 1 2
utimes file now now
futimens file 700 800
utimes a 900 1000
truncate file 3
truncate lf 10
truncate a 1
truncate fifo 1
truncate missing 1
truncate file -1
setxattr file user.x value
setxattr lf user.y other
lsetxattr dangling user.z no
setxattr missing user.x value
setxattr file user.x again
setxattr file bad value
setxattr file trusted.x value
removexattr file user.y
removexattr file user.none
setxattr missing "" value
removexattr missing ""
flagxattr missing user.x value
pathfchmod file 600
pathfchown file
pathfutimens file 1 2
pathfsetxattr file user.x value
pathfremovexattr file user.x
omittimes missing
badtimes file
badtimes missing
notimes
access file 0
access file 2
access file 1
access file 6
access missing 2
access a 3
access dangling 2
access fifo 2
access file 8
stat file
stat a
stat lf
stat dangling
stat file/
stat lb
lstat lb
lstat lf
lstat missing
fstat file
readlink lf
readlink file
readlink missing
readlink lb/
readlink ""
rename file file
rename file lf
rename a ./a
chdir a
chdir ..
chdir file
mkdir deep 755
chdir deep
mkdir ../a/from 755
symlink ../a/from way
mkdir way/in 755
rename way/in here
rmdir here
chdir ..
rename a/from a/to
`

// TestCallsAsBare does the calls of script without a filter and in each level, in
// equal directories: all results, errors and trees are the same.
func TestCallsAsBare(t *testing.T) {
	t.Parallel()
	run := func(level sandbox.Level) string {
		dir := t.TempDir()
		sandboxtest.Tree(t, dir, "file=content", "dangling -> nowhere")
		out := supervised(t, Config{Policy: workspace(t, filepath.Dir(dir))}, level, "calls", append([]string{dir}, strings.Split(strings.TrimSpace(script), "\n")...)...)
		return out + tree(t, dir)
	}
	want := run(sandbox.NoLevel)
	if n := strings.Count(want, "\n"); n < 150 {
		t.Fatalf("only %d lines:\n%s", n, want)
	}
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelReads, sandbox.LevelMetadata} {
		rig.Same(t, fmt.Sprintf("level %s, bare and supervised", level), strings.Split(want, "\n"), strings.Split(run(level), "\n"))
	}
}

// tree lists what is below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		target, _ := os.Readlink(path)
		times := ""
		if st.Mtim.Sec < 10000 { // those that the script has set
			times = fmt.Sprint(st.Mtim)
		}
		value := make([]byte, 100)
		n, _ := unix.Lgetxattr(path, "user.x", value)
		fmt.Fprintf(&b, "%s %o %d %d %s %s %q\n", name, st.Mode, st.Nlink, st.Uid, target, times, value[:max(n, 0)])
		return nil
	})
	rig.Must(t, err)
	return b.String()
}

// The child does the calls of a script in a directory, and prints their errors.
var _ = child("calls", func(t rig.T, args []string) {
	rig.Must(t, unix.Chdir(args[0]))
	for _, line := range args[1:] {
		fmt.Println(strings.TrimSpace(line)+":", sandboxtest.Attempt{Call: line}.Try())
	}
})
