module github.com/execagent/execagent/tools/release

go 1.26.8

require golang.org/x/mod v0.42.0 // semantic versions

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/in-toto/attestation v1.2.0
	github.com/secure-systems-lab/go-securesystemslib v0.11.1
	github.com/sigstore/protobuf-specs v0.5.2
	github.com/spdx/tools-golang v0.5.7
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	google.golang.org/genproto v0.0.0-20230706204954-ccb25ca9f130 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20230726155614-23370e0ffb3e // indirect
)
