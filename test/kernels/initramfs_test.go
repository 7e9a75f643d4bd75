package kernels

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// file is a program of the initramfs: its name there, and where it is here.
type file struct{ name, from string }

// writeImage writes a cpio archive, of the form that the kernel takes
// (Documentation/driver-api/early-userspace/buffer-format.rst), with the files at
// its top.
func writeImage(path string, files []file) error {
	image, err := os.Create(path)
	if err != nil {
		return err
	}
	for i, f := range files {
		content, err := os.ReadFile(f.from)
		if err == nil {
			err = writeEntry(image, f.name, i+1, 0o100755, content)
		}
		if err != nil {
			return errors.Join(err, image.Close())
		}
	}
	return errors.Join(writeEntry(image, "TRAILER!!!", 0, 0, nil), image.Close())
}

// writeEntry writes the header of one file, its name and its content.
func writeEntry(w io.Writer, name string, inode, mode int, content []byte) error {
	const noDevice = 0
	head := []byte("070701")
	for _, field := range []int{
		inode, mode, 0, 0, 1, 0, len(content), noDevice, noDevice, noDevice, noDevice, len(name) + 1, 0,
	} {
		head = fmt.Appendf(head, "%08x", field)
	}
	head = append(head, name+"\x00"...)
	_, err := w.Write(append(padded(head), padded(content)...))
	return err
}

// padded fills up to a multiple of four bytes.
func padded(b []byte) []byte { return append(slices.Clip(b), make([]byte, -len(b)&3)...) }
