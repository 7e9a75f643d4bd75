package changes

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/test/rig"
)

// folders returns the folders of a log in one line.
func folders(l *Log) string {
	all, more := l.All()
	var names []string
	for _, f := range all {
		names = append(names, f.Path)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %d", strings.Join(names, " "), more))
}

func TestAdd(t *testing.T) {
	many := strings.TrimSpace(strings.Repeat("/home/you/c/%d/x ", maxLike+1))
	var numbers []any
	for i := range maxLike + 1 {
		numbers = append(numbers, i)
	}
	for _, tt := range []struct{ name, changed, want string }{
		{"nothing", "", "0"},
		{"one folder twice", "/a/b /a/b", "/a/b 0"},
		{"a folder stands for those below it", "/a/b /a/b/c/d", "/a/b 0"},
		{"and takes the place of those", "/a/b/c/d /a/bc /a/b", "/a/b /a/bc 0"},
		{"not the home, and not the folders that it is in", "/home/you /home/you/.c /home /home/other /", "/ /home /home/other /home/you/.c /home/you/file 0"},
		{"relative", "a/b", "0"},
		{"folders that were made, and one in which a file was", "+/a/b +/a/b/c /a/b/c/d +/a/b/c/d/e +/a/b +/x +/x/y", "/a/b/c/d /x/y 0"},
		{"a folder that was made, and then a file in it", "+/a/b +/a/b/c /a/b", "/a/b 0"},
		{"many in one folder", strings.ReplaceAll(fmt.Sprintf(many, numbers...), "/x", ""), "/home/you/c 0"},
		{"many in the home", strings.ReplaceAll(strings.ReplaceAll(fmt.Sprintf(many, numbers...), "/x", ""), "/c/", "/"),
			"/home/you/0 /home/you/1 /home/you/10 /home/you/11 /home/you/12 /home/you/13 /home/you/14 /home/you/15 /home/you/16 /home/you/2 /home/you/3 /home/you/4 /home/you/5 /home/you/6 /home/you/7 /home/you/8 /home/you/9 0"},
	} {
		l := New("/home/you")
		for folder := range strings.FieldsSeq(tt.changed) {
			if made, ok := strings.CutPrefix(folder, "+"); ok {
				l.Add(made, made)
			} else {
				l.Add(folder, folder+"/file")
			}
		}
		rig.Is(t, folders(l), tt.want, "%s", tt.name)
	}
	var none *Log
	none.Add("/a", "/a/b")
	rig.Is(t, folders(none), "0", "nobody wants to know")
}

func TestBounds(t *testing.T) {
	l := New("/")
	for i := range maxFolders + 5 {
		l.Add(fmt.Sprintf("/%d/x/%d", i, i), "/")
	}
	all, more := l.All()
	rig.Is(t, len(all), maxFolders, "folders")
	rig.Is(t, more, 5, "more")
	l = New()
	for i := range 100 {
		l.Add(fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 4000)), "/")
	}
	all, more = l.All()
	rig.Is(t, len(all)+more, 100, "long paths")
	rig.Is(t, l.bytes <= maxBytes && len(all) > 20, true, "%d bytes of %d folders", l.bytes, len(all))
}

// TestFile: another process reads what was noted, from its place in a file that other notes are in.
func TestFile(t *testing.T) {
	fd := rig.Value(pack.SizedFile("changes", 8+FileSize))
	defer unix.Close(fd)
	empty := New()
	empty.ReadFile(fd, 8)
	rig.Is(t, folders(empty), "0", "an empty file")
	l := ToFile(fd, 8, "/home/you")
	rig.Is(t, rig.Value(unix.Pwrite(fd, []byte("refusals"), 0)), 8, "bytes before")
	for i := range maxFolders + 2 {
		l.Add(fmt.Sprintf("/home/you/%d", i), "/")
	}
	read := New("/home/you")
	read.ReadFile(fd, 8)
	rig.Is(t, folders(read), folders(l), "what is read")
	rig.Is(t, string(rig.Value(pack.ReadFile(fd, 8+FileSize))[:8]), "refusals", "bytes before")
}

func FuzzRead(f *testing.F) {
	f.Add(pack.AppendStrings(pack.AppendInt(nil, 2), []string{"/a/b", "/a/b/c", "/d", "/d/e"}))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := New("/home/you")
		l.read(b)
		all, more := l.All()
		if len(all) > maxFolders || l.bytes > maxBytes || more < 0 {
			t.Errorf("%d folders of %d bytes, %d more", len(all), l.bytes, more)
		}
	})
}
