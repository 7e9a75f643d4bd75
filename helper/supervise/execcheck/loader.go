package execcheck

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A program file of the ELF format names one more file, its loader, which the kernel
// opens and maps by itself, as it opens an interpreter (elf(5), PT_INTERP). That
// has to be a file which the command may read: it would be in the memory of the
// process otherwise, for another process of the command to read, and run there.

// loader returns the path of the loader that the program names; "" if it names none,
// or if the kernel would not load the file.
func (p *program) loader() (string, error) {
	fd, err := p.open()
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	read := func(at uint64, n int) []byte {
		b := make([]byte, n)
		if m, err := unix.Pread(fd, b, int64(at)); err != nil || m != n {
			return nil
		}
		return b
	}
	const class32, class64, sizeOfHeader32, sizeOfHeader64 = 1, 2, 52, 64
	const maxTable = 64 << 10 // the kernel loads no file with a longer table
	head := read(0, sizeOfHeader32)
	if !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return "", nil
	}
	// The programs of both architectures are little-endian.
	half, word, long := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	var table uint64
	var size, count int
	switch head[4] {
	case class32:
		table, size, count = uint64(word(head[28:])), 32, int(half(head[44:]))
	case class64:
		if head = read(0, sizeOfHeader64); head == nil {
			return "", nil
		}
		table, size, count = long(head[32:]), 56, int(half(head[56:]))
	default:
		return "", nil
	}
	if size*count > maxTable {
		return "", nil
	}
	for entries := read(table, size*count); len(entries) >= size; entries = entries[size:] {
		const interpreter = 3 // PT_INTERP
		if word(entries) != interpreter {
			continue
		}
		at, length := long(entries[8:]), long(entries[32:])
		if size == 32 {
			at, length = uint64(word(entries[4:])), uint64(word(entries[16:]))
		}
		if length < 2 || length > unix.PathMax {
			return "", nil
		}
		path, _, _ := bytes.Cut(read(at, int(length)), []byte{0})
		return string(path), nil
	}
	return "", nil
}

// mapped returns the files that are mapped into the process pid, each once: the
// program and its loader, where the process has just executed something.
func mapped(pid int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/map_files", pid)
	ranges, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, r := range ranges {
		path, err := os.Readlink(dir + "/" + r.Name())
		if err != nil {
			return nil, err
		}
		if len(paths) == 0 || paths[len(paths)-1] != path { // those of one file follow each other
			paths = append(paths, path)
		}
	}
	return paths, nil
}
