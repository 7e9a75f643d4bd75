package enforce

import "embed"

// programDir has the programs for this architecture.
const programDir = "filters/arm64"

//go:embed filters/arm64
var programs embed.FS
