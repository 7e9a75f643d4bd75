package sandbox_test

import (
	"fmt"

	"github.com/execagent/execagent/sandbox"
)

// What a command in a workspace may touch: it reads everything but one folder, and writes in its
// workspace, where the history of the code stays as it is.
func ExampleProfile() {
	profile := sandbox.WorkspaceWrite("/srv/w")
	profile.Entries = append(profile.Entries, sandbox.Entry{Path: "/srv/secrets", Access: sandbox.Denied})
	policy, err := profile.Compile()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{"/etc/hosts", "/srv/w/main.go", "/srv/w/.git/config", "/srv/secrets/key"} {
		fmt.Println(path, policy.Access(path))
	}
	fmt.Println("network", policy.Network)
	// Output:
	// /etc/hosts read
	// /srv/w/main.go write
	// /srv/w/.git/config read
	// /srv/secrets/key denied
	// network restricted
}
