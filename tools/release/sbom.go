package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

// A part is a program, a module that is linked into it, or Go's library.
type part struct {
	Name    string
	Version string
	PURL    string // the package URL: how databases of vulnerabilities call it
	Sum     string // of the module, as go.sum has it; a program has none
	License string
	Source  string // where its sources are; a module has none, because its package URL says enough
}

// contents are what the build information of a program says that it is made of.
type contents struct {
	Program part
	SHA256  string // of the program
	Parts   []part
}

// The endings of the two bills of materials of a program.
const (
	spdxEnding      = ".spdx.json"
	cycloneDXEnding = ".cdx.json"
)

// sbomName is the name of the bills of materials of a program, without their endings.
func (r *release) sbomName(program string, t target) string {
	return program + "_" + r.Version() + "_" + t.String()
}

// writeSBOMs writes two bills of materials for each program and target, because some tools read only
// SPDX, and others only CycloneDX.
func writeSBOMs(_ context.Context, r *release) error {
	licenses, err := readLicenses(r.Source())
	if err != nil {
		return err
	}
	for t, p := range builds() {
		c, err := r.contents(t, p, licenses)
		if err != nil {
			return err
		}
		name := r.sbomName(p.Name, t)
		asSPDX, err := r.spdxOf(c, name)
		if err != nil {
			return fmt.Errorf("%s: SPDX: %w", name, err)
		}
		asCycloneDX, err := r.cycloneDXOf(c)
		if err != nil {
			return fmt.Errorf("%s: CycloneDX: %w", name, err)
		}
		for ending, data := range map[string][]byte{spdxEnding: asSPDX, cycloneDXEnding: asCycloneDX} {
			if err := writeFile(r.Artefact(name+ending), data); err != nil {
				return err
			}
		}
	}
	return nil
}

// contents reads what a program is made of out of the program itself.
func (r *release) contents(t target, p program, licenses map[string]license) (*contents, error) {
	data, err := os.ReadFile(r.Stage(t, p.Name, "bin", t.Executable(p.Name)))
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	subpath := strings.TrimPrefix(info.Path, info.Main.Path+"/")
	c := &contents{
		SHA256: fmt.Sprintf("%x", sha256.Sum256(data)),
		Program: part{
			Name: p.Name, Version: r.Tag, License: "Apache-2.0", Source: repositoryURL,
			PURL: purl(info.Main.Path, r.Tag) + "?goarch=" + t.Architecture + "&goos=" + t.System + "#" + subpath,
		},
	}
	for _, m := range info.Deps {
		c.Parts = append(c.Parts, part{
			Name: m.Path, Version: m.Version, PURL: purl(m.Path, m.Version), Sum: m.Sum,
			License: licenses[m.Path].Expression,
		})
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	c.Parts = append(c.Parts, part{
		Name: "stdlib", Version: version, PURL: purl("stdlib", version),
		License: licenses[goLibrary].Expression, Source: "https://go.dev/dl/go" + version + ".src.tar.gz",
	})
	return c, nil
}

// purl is the package URL of a module. A + in a version, as of +incompatible, has to be escaped.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// spdxOf writes a document of SPDX 2.3.
func (r *release) spdxOf(c *contents, name string) ([]byte, error) {
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		// Other contents have another name space, and the same contents the same one.
		DocumentNamespace: repositoryURL + "/spdx/" + name + "-" + c.SHA256,
		CreationInfo: &spdx.CreationInfo{
			Created:  r.Time.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "execagent"}, {CreatorType: "Tool", Creator: "execagent-release-" + r.Version()}},
		},
	}
	relate := func(a, b common.ElementID, relationship string) {
		document.Relationships = append(document.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: relationship,
		})
	}
	add := func(p part, id common.ElementID, purpose string) *spdx.Package {
		pkg := &spdx.Package{
			PackageName: p.Name, PackageSPDXIdentifier: id, PackageVersion: p.Version, PackageDownloadLocation: cmp.Or(p.Source, "NOASSERTION"),
			PackageLicenseConcluded: p.License, PackageLicenseDeclared: p.License, PackageCopyrightText: "NOASSERTION",
			PrimaryPackagePurpose:     purpose,
			PackageExternalReferences: []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: p.PURL}},
		}
		if p.Sum != "" {
			pkg.PackageSourceInfo = "go.sum has " + p.Sum
		}
		document.Packages = append(document.Packages, pkg)
		return pkg
	}
	program := add(c.Program, "Program", "APPLICATION")
	program.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: c.SHA256}}
	program.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "execagent"}
	program.PackageDownloadLocation = "git+" + repositoryURL + "@" + r.Commit
	relate("DOCUMENT", "Program", common.TypeRelationshipDescribe)
	for n, p := range c.Parts {
		id := common.ElementID(fmt.Sprintf("Module-%d", n+1))
		add(p, id, "LIBRARY")
		relate("Program", id, common.TypeRelationshipContains)
	}
	if err := spdxlib.ValidateDocument(document); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(document, "", "  ")
	return append(data, '\n'), err
}

// cycloneDXOf writes a document of CycloneDX 1.6.
func (r *release) cycloneDXOf(c *contents) ([]byte, error) {
	component := func(p part, kind cyclonedx.ComponentType) cyclonedx.Component {
		return cyclonedx.Component{
			BOMRef: p.PURL, Type: kind, Name: p.Name, Version: p.Version, PackageURL: p.PURL,
			Licenses: &cyclonedx.Licenses{{Expression: p.License}},
		}
	}
	program := component(c.Program, cyclonedx.ComponentTypeApplication)
	program.ExternalReferences = &[]cyclonedx.ExternalReference{{URL: c.Program.Source, Type: cyclonedx.ERTypeVCS}}
	program.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: c.SHA256}}
	var components []cyclonedx.Component
	var contained []string
	for _, p := range c.Parts {
		library := component(p, cyclonedx.ComponentTypeLibrary)
		if p.Sum != "" {
			library.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: p.Sum}}
		}
		components = append(components, library)
		contained = append(contained, p.PURL)
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid(c.SHA256)
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.Time.Format(time.RFC3339),
		Component: &program,
		Tools:     &cyclonedx.ToolsChoice{Components: &[]cyclonedx.Component{{Type: cyclonedx.ComponentTypeApplication, Name: "execagent-release", Version: r.Tag}}},
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: program.BOMRef, Dependencies: &contained}}
	var data bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&data, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return data.Bytes(), err
}

// uuid is one of version 8 (RFC 9562, 5.8), out of a hash in hexadecimal digits: the same program has the same.
func uuid(hash string) string {
	return hash[0:8] + "-" + hash[8:12] + "-8" + hash[13:16] + "-8" + hash[17:20] + "-" + hash[20:32]
}
