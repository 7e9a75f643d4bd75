package supervise

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The caller's umask applies to objects that a call creates. The supervisor
// creates them under the same umask. It does not subtract the umask from the mode,
// because a directory with a default ACL ignores the umask (acl(5)). An umask
// belongs to a whole process, so calls with different umasks wait for each other.

// umask is an umask that applies for a while.
type umask struct {
	mu  sync.RWMutex // held while the umask counts, for writing while it changes
	now int          // -1: unknown
}

// ownUmask is the umask of this process. There is only one, whatever is supervised.
var ownUmask = umask{now: -1}

// under calls do while the umask of this process is mask.
func (u *umask) under(mask int, do func() error) error {
	u.mu.RLock()
	if u.now == mask {
		defer u.mu.RUnlock()
		return do()
	}
	u.mu.RUnlock()
	u.mu.Lock()
	defer u.mu.Unlock()
	unix.Umask(mask)
	u.now = mask
	return do()
}

// underUmask calls do under the caller's umask.
func (r *request) underUmask(do func() error) error {
	mask, err := r.umask()
	if err != nil {
		return err
	}
	return ownUmask.under(mask, do)
}
