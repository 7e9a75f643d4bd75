package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxArchive is in bytes. An archive should come over a slow line in seconds.
const maxArchive = 8_000_000

// compressors are the commands behind the endings of archives. gzip is on every machine, so it is what
// install.sh can rely on; libdeflate writes it 5 % smaller than gzip -9, which is what keeps the agent
// below maxArchive. xz is another fifth smaller, and not on every machine.
var compressors = map[string][]string{
	"tar.gz": {"libdeflate-gzip", "-12", "-c"},
	"tar.xz": {"xz", "-9e", "-T1", "-c"},
}

// packArchives writes the archive of each program for each target. It has one folder of its own name, so
// that nobody's folder is littered.
func packArchives(ctx context.Context, r *release) error {
	for t, p := range builds() {
		name := r.ArchiveName(p, t)
		archive, err := packArchive(ctx, r, t, p, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(archive) > maxArchive {
			return fmt.Errorf("%s has %d bytes, and the bound is %d", name, len(archive), maxArchive)
		}
		if err := writeFile(r.Artefact(name), archive); err != nil {
			return err
		}
	}
	return nil
}

func packArchive(ctx context.Context, r *release, t target, p program, name string) ([]byte, error) {
	ending := p.Ending(t)
	entries, err := readStage(r.Stage(t, p.Name), strings.TrimSuffix(name, "."+ending))
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	if ending == "zip" {
		err := packZip(&archive, r, entries)
		return archive.Bytes(), err
	}
	if err := packTar(&archive, r, entries); err != nil {
		return nil, err
	}
	return r.filter(ctx, archive.Bytes(), compressors[ending]...)
}

// ArchiveName is the name of an archive. Without its ending it is the name of the folder in it.
func (r *release) ArchiveName(p program, t target) string {
	return p.Product + "_" + r.Version() + "_" + t.String() + "." + p.Ending(t)
}

// An entry is a file or a folder of an archive.
type entry struct {
	Name  string
	Mode  fs.FileMode // without the bits that the umask of this machine decides
	Owner int         // the ids of the user and of the group in a tar archive: 0 is root
	Data  []byte
}

// readStage reads the files below a folder in the order of their paths. Their names begin with root.
func readStage(folder, root string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		e := entry{Name: path.Join(root, filepath.ToSlash(below)), Mode: 0o644}
		switch info, err := d.Info(); {
		case err != nil:
			return err
		case d.IsDir():
			e.Mode = fs.ModeDir | 0o755
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", file)
		default:
			if info.Mode()&0o100 != 0 {
				e.Mode = 0o755
			}
			if e.Data, err = os.ReadFile(file); err != nil {
				return err
			}
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// packTar writes entries as a tar archive of the time of the release.
func packTar(w io.Writer, r *release, entries []entry) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		header := &tar.Header{
			Name: e.Name, Mode: int64(e.Mode.Perm()), Uid: e.Owner, Gid: e.Owner, ModTime: r.Time, Format: tar.FormatPAX,
			Typeflag: tar.TypeReg, Size: int64(len(e.Data)),
		}
		if e.Mode.IsDir() {
			header.Typeflag, header.Name = tar.TypeDir, e.Name+"/"
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.Data); err != nil {
			return err
		}
	}
	return archive.Close()
}

func packZip(w io.Writer, r *release, entries []entry) error {
	archive := zip.NewWriter(w)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.Name, Method: zip.Deflate, Modified: r.Time}
		if e.Mode.IsDir() {
			header.Name, header.Method = e.Name+"/", zip.Store
		}
		header.SetMode(e.Mode)
		file, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(e.Data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// compressed is data as gzip -9n writes it.
func compressed(data []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, _ = w.Write(data) // to memory: no error
		err = w.Close()
	}
	if err != nil {
		panic(err)
	}
	return out.Bytes()
}
