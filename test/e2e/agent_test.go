// Package e2e tests the agent as its users meet it: a program that is started, talked to and ended.
package e2e

import (
	"regexp"

	"github.com/execagent/execagent/test/rig"
)

// patience is how long a test waits for what must come, before it fails.
const patience = rig.Patience

// waits are the lines by which users learn, after a second or two, that they have to wait.
var waits = regexp.MustCompile(`(?m)^agent: (waiting for .+|the connection is (lost, waiting for it to come back.*|back))\r?\n`)

// withoutWaits is what a program has said, without the lines that a machine makes it say which
// has much else to do.
func withoutWaits(said string) string { return waits.ReplaceAllString(said, "") }
