module github.com/execagent/execagent/tools/release

go 1.26.8

require golang.org/x/mod v0.42.0 // semantic versions

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/spdx/tools-golang v0.5.7
)

require github.com/anchore/go-struct-converter v0.1.0 // indirect
