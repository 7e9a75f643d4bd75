package linux

import "golang.org/x/sys/unix"

// NextData returns the first part of a file that has data and ends after an offset. If only a hole
// follows, the part is empty and at the end of the file. If the file system knows no holes, all is
// data. It moves the offset of the file.
func NextData(fd int, at, size int64) (from, to int64) {
	from, err := unix.Seek(fd, at, unix.SEEK_DATA)
	if err == unix.ENXIO || err == nil && from >= size {
		return size, size
	}
	if err != nil {
		return at, size
	}
	to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
	if err != nil || to <= from {
		return from, size
	}
	return from, min(to, size)
}
