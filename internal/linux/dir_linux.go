package linux

import "golang.org/x/sys/unix"

// CheckDir finds out why chdir(2) to a directory would fail.
func CheckDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	return unix.Access(dir, unix.X_OK)
}
