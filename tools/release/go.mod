module github.com/execagent/execagent/tools/release

go 1.26.8

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0 // SBOMs: CycloneDX
	github.com/in-toto/attestation v1.2.0 // provenance: statements, and the predicate of SLSA
	github.com/secure-systems-lab/go-securesystemslib v0.11.1 // cosign's private keys, and what DSSE signs
	github.com/sigstore/protobuf-specs v0.5.2 // the bundles that cosign verifies
	github.com/spdx/tools-golang v0.5.7 // SBOMs: SPDX
	golang.org/x/mod v0.42.0 // semantic versions
	google.golang.org/protobuf v1.36.11 // the JSON of bundles and statements
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	google.golang.org/genproto v0.0.0-20230706204954-ccb25ca9f130 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20230726155614-23370e0ffb3e // indirect
)
