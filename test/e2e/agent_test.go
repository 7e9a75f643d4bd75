// Package e2e tests the agent as its users meet it: a program that is started, talked to and ended.
package e2e

import "github.com/execagent/execagent/test/rig"

// patience is how long a test waits for what must come, before it fails.
const patience = rig.Patience
