package enforce

import "embed"

// programDir has the programs for this architecture.
const programDir = "filters/amd64"

//go:embed filters/amd64
var programs embed.FS
