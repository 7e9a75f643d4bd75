package applypatch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// Whole applies p, and changes all files or none.
//
// It first writes the new content of each file into a new file beside it. If all of that has
// succeeded, it renames these to the names of the files, and finally removes the files to be
// removed. If one of these steps fails, it undoes the earlier ones. So a file is the old or the new
// one at any time, even if this process is killed. Then files whose names begin with
// ".apply-patch-" can be left over, and some files can be new and others old. Only a mounted file
// is written in place, because it cannot be replaced.
//
// A file keeps its mode, also if it is moved, and its owner if this process may set it. It loses
// its other names (hard links). A link is followed, and stays, but a dangling link is an error.
func (t *Target) Whole(ctx context.Context, p *Patch) ([]Change, error) {
	s := &staged{overlay: overlay{Target: t, entries: map[string]*touchedFile{}}}
	changes, err := t.apply(ctx, p, s)
	if err == nil {
		err = ctx.Err()
	}
	// From here on, the change is either completed or undone.
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		err = s.commit(ctx)
	}
	return changes, errors.Join(err, s.clean(ctx, err != nil))
}

// prefix begins the names of the files for new contents.
const prefix = ".apply-patch-"

// staged is a tree with new contents in separate files.
type staged struct {
	overlay
	made  []string // directories
	spare []string // files to remove at the end
}

func (s *staged) add(ctx context.Context, path string, h *hunk) error {
	e, err := s.fresh(ctx, path)
	if err != nil {
		return writeError(path, err)
	}
	return s.stage(ctx, e, path, nil, h.content)
}

func (s *staged) update(ctx context.Context, src *source, u *updated) error {
	e, err := s.again(ctx, src)
	if err != nil {
		return writeError(src.path, err)
	}
	return s.stage(ctx, e, src.path, nil, u.content)
}

func (s *staged) move(ctx context.Context, src *source, path string, u *updated) error {
	e, err := s.fresh(ctx, path)
	if err != nil {
		return writeError(path, err)
	}
	same, err := s.same(ctx, src, e)
	if err != nil {
		return writeError(path, err)
	}
	if err := s.stage(ctx, e, path, &src.stat, u.content); err != nil || same {
		return err
	}
	return s.remove(ctx, src.path)
}

func (s *staged) remove(ctx context.Context, path string) error {
	if err := s.take(ctx, path); err != nil {
		return deleteError(path, err)
	}
	return nil
}

// stage writes the new content of e. moved describes the moved file that it comes from, if any.
func (s *staged) stage(ctx context.Context, e *touchedFile, path string, moved *unix.Stat_t, content func(io.Writer) error) error {
	f, name, err := s.beside(ctx, e.path, path)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	switch {
	case err != nil:
	case e.like != nil:
		if err = resemble(f, &st, e.like); err == nil && moved != nil {
			err = makeExecutable(f, &st, moved.Mode)
		}
	case moved != nil:
		err = resemble(f, &st, moved)
	}
	if err == nil {
		err = pour(f, content)
	}
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return writeError(path, err)
	}
	e.like = &st
	e.temp, e.filled, e.gone = name, true, false
	s.keep(e)
	return nil
}

// resemble gives f the mode and the owner of another file; st describes f.
func resemble(f *os.File, st, like *unix.Stat_t) error {
	if st.Uid != like.Uid || st.Gid != like.Gid {
		if err := f.Chown(int(like.Uid), int(like.Gid)); err != nil && !errors.Is(err, syscall.EPERM) {
			return err
		}
	}
	const permissions = 0o777 // a new content must not inherit the setuid bit
	if st.Mode&permissions == like.Mode&permissions {
		return nil
	}
	if err := unix.Fchmod(int(f.Fd()), like.Mode&permissions); err != nil {
		return err
	}
	st.Mode = like.Mode
	return nil
}

// beside makes a file in the directory of path, and makes missing directories. The file is
// removed at the end, if it still exists.
func (s *staged) beside(ctx context.Context, path, named string) (f *os.File, name string, err error) {
	name = filepath.Join(filepath.Dir(path), prefix+rand.Text())
	fd, err := s.Files.OpenWrite(ctx, name, fsops.Writing{Links: fsops.RefuseLinks})
	if errors.Is(err, syscall.ENOENT) {
		if err := s.makeParents(ctx, filepath.Dir(path)); err != nil {
			return nil, "", parentsError(named, err)
		}
		if fd, err = s.Files.OpenWrite(ctx, name, fsops.Writing{Links: fsops.RefuseLinks}); errors.Is(err, syscall.ENOENT) {
			return nil, "", parentsError(named, err)
		}
	}
	if err != nil {
		return nil, "", writeError(named, err)
	}
	s.spare = append(s.spare, name)
	return os.NewFile(uintptr(fd), name), name, nil
}

// makeParents makes dir and its missing parents.
func (s *staged) makeParents(ctx context.Context, dir string) error {
	if _, err := s.Files.Stat(ctx, dir, fsops.FollowLinks); !errors.Is(err, syscall.ENOENT) || dir == "/" {
		return err
	}
	if err := s.makeParents(ctx, filepath.Dir(dir)); err != nil {
		return err
	}
	err := s.Files.CreateDirectory(ctx, dir, false, fsops.FollowLinks)
	if errors.Is(err, syscall.EEXIST) {
		return nil // it has been made in the meantime, or is a link: writing into it will show
	}
	if err == nil {
		s.made = append(s.made, dir)
	}
	return err
}

// step is one change of the existing files.
type step struct {
	*touchedFile
	backup string // the previous file at the path, "" for none
	// mounted says that the path is a mount point: the file is written in place.
	mounted bool
}

// commit makes the staged changes real.
func (s *staged) commit(ctx context.Context) error {
	var steps []*step
	for _, e := range s.order {
		if !e.gone {
			steps = append(steps, &step{touchedFile: e})
		}
	}
	for _, e := range s.order {
		if e.gone && e.existed {
			steps = append(steps, &step{touchedFile: e})
		}
	}
	// No step that could fail follows the last one, so it is never undone.
	last := len(steps) - 1
	for i, step := range steps {
		if step.existed && !step.special && !step.gone && i < last {
			if err := s.backUp(ctx, step); err != nil {
				return err
			}
		}
	}
	for i, step := range steps {
		if err := s.do(ctx, step, i == last); err != nil {
			for _, done := range slices.Backward(steps[:i]) {
				err = errors.Join(err, s.undo(ctx, done))
			}
			return err
		}
	}
	return nil
}

// backUp copies the file that a step replaces.
func (s *staged) backUp(ctx context.Context, step *step) error {
	fd, like, err := s.open(ctx, step.path, fsops.RefuseLinks)
	if err != nil {
		return writeError(step.named, err)
	}
	old := os.NewFile(uintptr(fd), step.path)
	defer old.Close()
	f, name, err := s.beside(ctx, step.path, step.named)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		err = resemble(f, &st, &like)
	}
	if err == nil {
		_, err = io.Copy(f, old)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return writeError(step.named, err)
	}
	step.backup = name
	return nil
}

func (s *staged) do(ctx context.Context, step *step, last bool) error {
	if step.gone && last {
		if err := s.Files.Remove(ctx, step.path, false, false, fsops.FollowLinks); err != nil {
			return deleteError(step.named, err)
		}
		return nil
	}
	if step.gone || step.special {
		name := filepath.Join(filepath.Dir(step.path), prefix+rand.Text())
		if err := s.Files.Rename(ctx, step.path, name, false); err != nil {
			return deleteError(step.named, err)
		}
		step.backup = name
		s.spare = append(s.spare, name)
	}
	if step.gone {
		return nil
	}
	err := s.Files.Rename(ctx, step.temp, step.path, step.existed && !step.special)
	if errors.Is(err, syscall.EBUSY) && step.existed && !step.special {
		err = s.inPlace(ctx, step, err)
	}
	if err != nil {
		if step.special {
			err = errors.Join(err, s.undo(ctx, step))
		}
		return writeError(step.named, err)
	}
	return nil
}

// inPlace writes the new content over a file that cannot be replaced, because it is mounted. If the
// file cannot be written either, it returns busy.
func (s *staged) inPlace(ctx context.Context, step *step, busy error) error {
	if step.backup == "" {
		if err := s.backUp(ctx, step); err != nil {
			return err
		}
	}
	opened, err := s.pourFile(ctx, step.temp, step.path)
	if !opened {
		return busy
	}
	step.mounted = true
	if err != nil {
		err = errors.Join(err, s.undo(ctx, step))
	}
	return err
}

// pourFile writes the content of one file over another file. It reports whether it could open both,
// because opening a file for writing empties it.
func (s *staged) pourFile(ctx context.Context, from, to string) (opened bool, err error) {
	fd, _, err := s.open(ctx, from, fsops.RefuseLinks)
	if err != nil {
		return false, err
	}
	src := os.NewFile(uintptr(fd), from)
	defer src.Close()
	if fd, err = s.Files.OpenWrite(ctx, to, fsops.Writing{Links: fsops.RefuseLinks}); err != nil {
		return false, err
	}
	dst := os.NewFile(uintptr(fd), to)
	_, err = io.Copy(dst, src)
	return true, errors.Join(err, dst.Close())
}

// undo undoes a step.
func (s *staged) undo(ctx context.Context, step *step) error {
	var err error
	switch {
	case step.backup == "":
		err = s.Files.Remove(ctx, step.path, false, false, fsops.FollowLinks)
	case step.mounted:
		_, err = s.pourFile(ctx, step.backup, step.path)
	default:
		err = s.Files.Rename(ctx, step.backup, step.path, true)
	}
	if err != nil && step.backup != "" {
		// Keep the backup, because it would be lost otherwise.
		s.spare = slices.DeleteFunc(s.spare, func(name string) bool { return name == step.backup })
	}
	if err != nil {
		return fmt.Errorf("putting back %s: %s", step.named, reason(err))
	}
	return nil
}

// clean removes remaining temporary files, and after a failure also the directories that
// were made.
func (s *staged) clean(ctx context.Context, failed bool) error {
	var errs []error
	for _, name := range s.spare {
		if err := s.Files.Remove(ctx, name, false, true, fsops.FollowLinks); err != nil {
			errs = append(errs, fmt.Errorf("removing %s: %s", name, reason(err)))
		}
	}
	if failed {
		for _, dir := range slices.Backward(s.made) {
			// Another program may have put something there.
			_ = s.Files.Remove(ctx, dir, false, true, fsops.FollowLinks)
		}
	}
	return errors.Join(errs...)
}
