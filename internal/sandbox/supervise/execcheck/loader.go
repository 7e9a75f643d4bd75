package execcheck

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A program file of the ELF format names one more file, its loader, which the kernel
// opens and maps by itself, as it opens an interpreter (elf(5), PT_INTERP). That
// has to be a file which the command may read: it would be in the memory of the
// process otherwise, for another process of the command to read, and run there.

// beginning is how much of a program is read at once: nearly always all that is needed.
const beginning = 1 << 10

// loaderOf returns the path of the loader that a program names; "" if it names none,
// or if the kernel would not load the file. Begin is its beginning.
func loaderOf(fd int, begin []byte) string {
	if !bytes.HasPrefix(begin, []byte("\x7fELF")) {
		return ""
	}
	read := func(at uint64, n int) []byte {
		if at <= uint64(len(begin)) && uint64(n) <= uint64(len(begin))-at {
			return begin[at:][:n]
		}
		b := make([]byte, n)
		if m, err := unix.Pread(fd, b, int64(at)); err != nil || m != n {
			return nil
		}
		return b
	}
	const sizeOfHeader32, sizeOfHeader64 = 52, 64
	const maxTable = 64 << 10 // the kernel loads no file with a longer table
	head := read(0, sizeOfHeader32)
	if head == nil {
		return ""
	}
	// The programs of both architectures are little-endian.
	half, word, long := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	// The kernel does not look at the class that the file says it has, but at the machine and the
	// size of an entry.
	table, size, count := uint64(word(head[28:])), 32, int(half(head[44:]))
	const amd64, arm64 = 62, 183 // EM_X86_64 and EM_AARCH64 of elf.h
	switch half(head[18:]) {
	case amd64, arm64:
		if wide := read(0, sizeOfHeader64); wide != nil && half(wide[54:]) == 56 {
			table, size, count = long(wide[32:]), 56, int(half(wide[56:]))
		}
	}
	if size*count > maxTable {
		return ""
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
			return ""
		}
		path, _, _ := bytes.Cut(read(at, int(length)), []byte{0})
		return string(path)
	}
	return ""
}

// mapped returns the files that are mapped into the process pid, each once: the
// program and its loader, where the process has just executed something.
func mapped(pid int) ([]string, error) {
	maps, err := readAll(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var paths []string
	for line := range strings.Lines(maps) {
		// Addresses, rights, offset, device and inode, which is 0 where no file is mapped; then
		// blanks and the path, in which a line feed is written as \012.
		rest := line
		var field string
		for range 5 {
			field, rest, _ = strings.Cut(rest, " ")
		}
		path := strings.TrimSuffix(strings.TrimLeft(rest, " "), "\n")
		switch {
		case field == "0" && !strings.HasPrefix(path, "/"):
		case path == "" || strings.Contains(path, `\`):
			return mappedFiles(pid) // by another way, which takes longer
		case len(paths) == 0 || paths[len(paths)-1] != path: // those of one file follow each other
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// mappedFiles does what mapped does, for all paths.
func mappedFiles(pid int) ([]string, error) {
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

// maxMaps bounds what is read of the maps of a process that has just executed something, in bytes.
const maxMaps = 1 << 20

// readAll reads a file of procfs.
func readAll(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	b, n := make([]byte, 4<<10), 0
	for {
		m, err := unix.Read(fd, b[n:])
		if err != nil {
			return "", err
		}
		if m == 0 {
			return string(b[:n]), nil
		}
		if n += m; n == len(b) {
			if n >= maxMaps {
				return "", unix.E2BIG
			}
			b = append(b, make([]byte, n)...)
		}
	}
}
