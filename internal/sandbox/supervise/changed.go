package supervise

import (
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// changed notes a change of the object at a canonical path, unless the call has failed: a policy has to let its
// folder be written. A folder that the call has made is the folder itself, because a policy can name it, and who
// uses the policy makes it.
func (r *request) changed(a callResult, path string, made bool) callResult {
	if r.n.config.Changes == nil || a.how != returned && a.how != given || path == "" || strings.HasPrefix(path, "/memfd:") {
		return a
	}
	folder := path
	if !made {
		folder = pathname.Parent(path)
	}
	r.n.config.Changes.Add(folder, path)
	return a
}
