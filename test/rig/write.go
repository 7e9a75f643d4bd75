package rig

import (
	"errors"
	"os"
	"syscall"
)

// WriteProgram writes a program, which everybody may execute. No process that is forked meanwhile
// has the file open for writing, because then the file could not be executed.
func WriteProgram(path string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return errors.Join(os.WriteFile(path, program, 0o755), os.Chmod(path, 0o755)) // whatever the umask
}
