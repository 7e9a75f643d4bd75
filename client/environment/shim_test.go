package environment_test

import "github.com/execagent/execagent/client"

// withoutRecovery makes a client fail with its connection. It stands for what package
// client does not have yet, like shim.go: cfg.Single = true; return cfg.
func withoutRecovery(cfg client.Config) client.Config { return cfg }
