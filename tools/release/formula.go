package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"text/template"
)

// formulaText is the formula of Homebrew (https://docs.brew.sh/Formula-Cookbook). A program of another archive is a
// resource of it.
var formulaText = template.Must(template.New("formula").Parse(`# Made by tools/release: the next release replaces it.
class Execagent < Formula
  desc "Executor for coding agents that confines each command"
  homepage "{{.Homepage}}"
  version "{{.Version}}"
  license "Apache-2.0"
{{if eq (len .Systems) 1}}
  depends_on :linux
{{end}}
{{- range .Systems}}
  on_{{.Name}} do
{{- range .Architectures}}
    on_{{.Name}} do
      url "{{.Agent.URL}}"
      sha256 "{{.Agent.Sum}}"

      resource "agent-mcp" do
        url "{{.MCP.URL}}"
        sha256 "{{.MCP.Sum}}"
      end
    end
{{- end}}
  end
{{end}}
  def install
    bin.install "bin/agent"
    bash_completion.install "share/bash-completion/completions/agent"
    fish_completion.install Dir["share/fish/vendor_completions.d/*"]
    zsh_completion.install Dir["share/zsh/site-functions/*"]
    man1.install Dir["share/man/man1/*"]
    resource("agent-mcp").stage { bin.install "bin/agent-mcp" }
  end

  test do
    assert_match "agent #{version}", shell_output("#{bin}/agent version")
  end
end
`))

type formulaArchive struct{ URL, Sum string }

type formulaArchitecture struct {
	Name       string // as the formula calls it: intel or arm
	Agent, MCP formulaArchive
}

type formulaSystem struct {
	Name          string // linux or macos
	Architectures []formulaArchitecture
}

// writeFormula writes the formula of Homebrew, with the sums of the archives.
func writeFormula(_ context.Context, r *release) error {
	var systems []formulaSystem
	for _, system := range []struct{ ours, theirs string }{{"darwin", "macos"}, {"linux", "linux"}} {
		made := formulaSystem{Name: system.theirs}
		for _, t := range targetsOf(system.ours) {
			agent, err := r.formulaArchive("agent", t)
			if err != nil {
				return err
			}
			mcp, err := r.formulaArchive("agent-mcp", t)
			if err != nil {
				return err
			}
			name := map[string]string{"amd64": "intel", "arm64": "arm"}[t.Architecture]
			made.Architectures = append(made.Architectures, formulaArchitecture{name, agent, mcp})
		}
		if made.Architectures != nil {
			systems = append(systems, made)
		}
	}
	var text bytes.Buffer
	err := formulaText.Execute(&text, map[string]any{"Homepage": repositoryURL, "Version": r.Version(), "Systems": systems})
	if err != nil {
		return err
	}
	return writeFile(r.Artefact("execagent.rb"), text.Bytes())
}

func (r *release) formulaArchive(name string, t target) (formulaArchive, error) {
	for _, p := range programs {
		if p.Name != name {
			continue
		}
		file := r.ArchiveName(p, t)
		data, err := os.ReadFile(r.Artefact(file))
		if err != nil {
			return formulaArchive{}, err
		}
		return formulaArchive{
			URL: repositoryURL + "/releases/download/" + r.Tag + "/" + file,
			Sum: fmt.Sprintf("%x", sha256.Sum256(data)),
		}, nil
	}
	return formulaArchive{}, fmt.Errorf("there is no program %s", name)
}
