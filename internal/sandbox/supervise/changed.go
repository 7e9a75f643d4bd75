package supervise

import (
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// changed notes a change of the object at a canonical path, unless the call has failed: a policy has to let its
// folder be written. A folder that the call has made is the folder itself, because a policy can name it, and who
// uses the policy makes it.
func (r *request) changed(a callResult, path string, made bool) callResult {
	if a.how != returned && a.how != given {
		return a
	}
	folder := path
	if !made {
		folder = pathname.Parent(path)
	}
	r.n.noteChange(folder, path)
	return a
}

// noteChange notes a change in a folder, except of what belongs to the command alone or to the kernel.
func (n *Notifier) noteChange(folder, path string) {
	own := n.shm.inUse() && within(path, devShm) || strings.HasPrefix(path, "/memfd:")
	if n.config.Changes != nil && strings.HasPrefix(path, "/") && !own && !pathname.IsPseudo(path) {
		n.config.Changes.Add(folder, path)
	}
}
