package fsops

import (
	"cmp"
	"context"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// copyChunk is how many bytes the kernel copies between two checks of the
// context.
const copyChunk = 16 << 20

// Copy copies src to dst. A file keeps its contents and mode, and overwrites the
// file that dst leads to. A link is copied as a link, with the same target. A
// directory needs recursive: it merges into an existing one, missing parents are
// made, and fifos, sockets and devices in it are left out. The first error or the
// end of the context ends the copy; everything copied by then stays.
//
// Copying a file onto itself, or a directory into itself, is an [InvalidError],
// also through links, and nothing is touched. Links in the source are never
// followed, nor are links in directories that the copy itself made. Links in an
// existing destination are followed, as for a single file.
func (Host) Copy(ctx context.Context, src, dst string, recursive bool) error {
	return (*View)(nil).copy(ctx, src, dst, recursive)
}

// Copy copies src to dst. Hidden objects in src are left out. A denied object in
// src is an error, and so is each name in dst that may not be created or written.
func (v *View) Copy(ctx context.Context, src, dst string, recursive bool) error {
	return v.copy(ctx, src, dst, recursive)
}

func (v *View) copy(ctx context.Context, src, dst string, recursive bool) error {
	var st unix.Stat_t
	if err := v.lstat(workingDir, src, &st); err != nil {
		return pathError("copy", src, err)
	}
	var err error
	switch kindOf(&st) {
	case unix.DT_LNK:
		err = v.copyLink(workingDir, src, workingDir, dst)
	case unix.DT_REG:
		err = v.copyFile(ctx, workingDir, src, copyTarget{Dir: workingDir}, dst)
	case unix.DT_DIR:
		if !recursive {
			return invalidf("source path %q is a directory and recursive is false", src)
		}
		err = v.copyTree(ctx, src, dst)
	default:
		return invalidf("source path %q is not a regular file, directory or symbolic link", src)
	}
	return pathError("copy", src, err)
}

// copyTarget is a directory to copy into.
type copyTarget struct {
	Dir
	// fresh says that the copy made this directory. It had no link in it, so a
	// link in it now is an attack and is not followed.
	fresh bool
}

func (v *View) copyLink(srcDir Dir, src string, dstDir Dir, dst string) error {
	target, err := v.readLink(srcDir, src)
	if err != nil {
		return err
	}
	return v.symlink(target, dstDir, dst)
}

func (v *View) copyFile(ctx context.Context, srcDir Dir, src string, to copyTarget, dst string) error {
	in, err := v.openSource(srcDir, src)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var from, old unix.Stat_t
	if err := fstat(in, &from); err != nil {
		return err
	}
	if !isRegular(&from) {
		return notRegular(src)
	}

	out, err := v.openTarget(to.Dir, dst, to.fresh, from.Mode&0o777)
	if err != nil {
		return err
	}
	if err = fstat(out, &old); err == nil {
		mode := from.Mode & 0o7777
		if v != nil {
			mode &^= unix.S_ISUID | unix.S_ISGID // executing the copy would give our ids
		}
		err = overwrite(ctx, in, &from, mode, out, &old, dst)
	}
	if cerr := unix.Close(out); err == nil && cerr != unix.EINTR {
		err = cerr
	}
	return err
}

// overwrite gives the file old, open as out, the mode and the contents of in.
func overwrite(ctx context.Context, in int, from *unix.Stat_t, mode uint32, out int, old *unix.Stat_t, dst string) error {
	if idOf(from) == idOf(old) {
		return invalidf("destination path %q is the source itself", dst)
	}
	if isRegular(old) {
		// The mode comes first. Otherwise others could for a moment read
		// contents that the source's mode hides.
		if old.Mode&0o7777 != mode {
			if err := unix.Fchmod(out, mode); err != nil {
				return err
			}
		}
		if old.Size > 0 {
			if err := unix.Ftruncate(out, 0); err != nil {
				return err
			}
		}
	}
	if !isRegular(old) {
		return copyData(ctx, in, out, math.MaxInt64)
	}
	return copyFileData(ctx, in, from, out)
}

// copyFileData copies in to out, which is empty. Where in has a hole, out gets one.
func copyFileData(ctx context.Context, in int, from *unix.Stat_t, out int) error {
	if from.Blocks*512 < from.Size {
		if err := copyParts(ctx, in, from.Size, out); err != nil {
			return err
		}
	}
	return copyData(ctx, in, out, math.MaxInt64) // all, or what was appended meanwhile
}

// copyParts copies the parts of in that have data, and moves the offsets of both files to size.
func copyParts(ctx context.Context, in int, size int64, out int) error {
	for at := int64(0); at < size; {
		from, to := linux.NextData(in, at, size)
		for _, fd := range [...]int{in, out} {
			if _, err := unix.Seek(fd, from, unix.SEEK_SET); err != nil {
				return err
			}
		}
		var err error
		if from < to {
			err = copyData(ctx, in, out, to-from)
		} else {
			err = unix.Ftruncate(out, size)
		}
		if err != nil {
			return err
		}
		at = to
	}
	return nil
}

// copyData copies the next bytes of in to out, at most limit. The kernel does it where it can: it
// also shares blocks where the file system does.
func copyData(ctx context.Context, in, out int, limit int64) error {
	for copied := false; limit > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.CopyFileRange(in, nil, out, nil, int(min(limit, copyChunk)), 0)
		switch {
		case err == unix.EINTR:
		case n > 0:
			copied = true
			limit -= int64(n)
		case !copied:
			// The kernel does not copy devices or files of procfs, nor between
			// some file systems: copyByHand copies these. Any other error
			// happens there again.
			return copyByHand(ctx, in, out, limit)
		default:
			return err // nil at the end of the file
		}
	}
	return nil
}

func copyByHand(ctx context.Context, in, out int, limit int64) error {
	buf := make([]byte, 128<<10)
	for limit > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := read(in, buf[:min(limit, int64(len(buf)))])
		if err != nil || n == 0 {
			return err
		}
		if err := writeAll(out, buf[:n]); err != nil {
			return err
		}
		limit -= int64(n)
	}
	return nil
}

// copyTree copies the directory src to dst.
func (v *View) copyTree(ctx context.Context, src, dst string) error {
	if err := v.checkTarget(src, dst); err != nil {
		return err
	}
	in, err := v.openDir(workingDir, src, false)
	if err != nil {
		return err
	}
	c := treeCopy{view: v, made: map[fileID]bool{}, reader: newDirReader()}
	defer c.src.close()
	defer c.dst.close()
	if err := c.src.push(in); err != nil {
		return err
	}
	fresh, err := v.makeAll(dst)
	if err != nil {
		return err
	}
	out, err := v.openDir(workingDir, dst, !fresh)
	if err != nil {
		return err
	}
	if err := c.push(out, fresh, dst); err != nil {
		return err
	}
	return c.run(ctx)
}

// checkTarget refuses a dst that, with its links resolved, is src or below src, and
// a dst that may not be written. The last names of dst need not exist.
func (v *View) checkTarget(src, dst string) error {
	realSrc, err := v.canonicalize(src)
	if err != nil {
		return err
	}
	existing, missing := dst, ""
	realDst, err := v.canonicalize(existing)
	for err == unix.ENOENT && existing != "/" {
		parent, name := splitPath(existing)
		existing, missing = parent, "/"+name+missing
		realDst, err = v.canonicalize(existing)
	}
	if err != nil {
		return err
	}
	realDst = strings.TrimSuffix(realDst, "/") + missing
	if v != nil {
		if err := v.paths.rules.Access(realDst).writable(); err != nil {
			return err
		}
	}
	if realDst == realSrc || strings.HasPrefix(realDst, join(realSrc, "")) {
		return invalidf("destination path %q is the source directory %q or in it", dst, src)
	}
	return nil
}

// treeCopy is a copy under way: the directories that it is in, on both sides.
type treeCopy struct {
	view     *View
	src, dst dirStack
	levels   []copyLevel
	// made has every directory that was copied into. None of them is read as a
	// source. Otherwise a link in the destination that leads into the source
	// would make the copy endless.
	made   map[fileID]bool
	reader *dirReader
}

type copyLevel struct {
	pending []string // directories seen and not yet entered
	offset  int64    // where to continue reading the source
	fresh   bool
}

// push enters the destination directory out, which the copy now owns, for the
// source directory that was pushed before.
func (c *treeCopy) push(out Dir, fresh bool, name string) error {
	if err := c.dst.push(out); err != nil {
		return err
	}
	c.made[c.dst.top().id] = true
	if c.made[c.src.top().id] {
		return invalidf("destination path %q is in the source directory", name)
	}
	c.levels = append(c.levels, copyLevel{fresh: fresh})
	return nil
}

func (c *treeCopy) run(ctx context.Context) error {
	for len(c.levels) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := &c.levels[len(c.levels)-1]
		if n := len(l.pending); n > 0 {
			name := l.pending[n-1]
			l.pending = l.pending[:n-1]
			if err := c.enter(name); err != nil {
				return err
			}
			continue
		}
		more, err := c.reader.fill(c.src.top().FD)
		if err != nil {
			return err
		}
		if more {
			l.offset = c.reader.offset()
			if err := c.copyNames(ctx, l); err != nil {
				return err
			}
			continue
		}
		if err := c.pop(); err != nil {
			return err
		}
	}
	return nil
}

// copyNames copies the names that the reader holds. Directories are noted in
// pending.
func (c *treeCopy) copyNames(ctx context.Context, l *copyLevel) error {
	in := c.src.top().Dir
	out := copyTarget{Dir: c.dst.top().Dir, fresh: l.fresh}
	for raw, kind := range c.reader.all {
		if !c.view.shows(in, raw, kind) {
			continue
		}
		name := string(raw)
		if kind == unix.DT_UNKNOWN {
			var st unix.Stat_t
			if err := fstatAt(in.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			kind = kindOf(&st)
		}
		var err error
		switch kind {
		case unix.DT_DIR:
			l.pending = append(l.pending, name)
		case unix.DT_REG:
			err = c.view.copyFile(ctx, in, name, out, name)
		case unix.DT_LNK:
			err = c.view.copyLink(in, name, out.Dir, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter enters the directory name on both sides and makes it in the destination
// if it is missing.
func (c *treeCopy) enter(name string) error {
	in, err := c.view.openDir(c.src.top().Dir, name, false)
	if err != nil {
		return err
	}
	if err := c.src.push(in); err != nil {
		return err
	}
	if c.made[c.src.top().id] {
		return invalidf("destination directory %q is in the source directory", name)
	}
	out, fresh, err := c.view.makeDir(c.dst.top().Dir, name)
	if err != nil {
		return err
	}
	return c.push(out, fresh, name)
}

// pop leaves the innermost directories and continues in their parents.
func (c *treeCopy) pop() error {
	reopened, err := c.src.pop()
	_, derr := c.dst.pop()
	c.levels = c.levels[:len(c.levels)-1]
	if err := cmp.Or(err, derr); err != nil || !reopened {
		return err
	}
	_, err = unix.Seek(c.src.top().FD, c.levels[len(c.levels)-1].offset, unix.SEEK_SET)
	return err
}
