package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"gopkg.in/yaml.v3"
)

// imageRegistry is where the images of releases are. Those of the tree have the names that make image gives them.
const imageRegistry = "ghcr.io/execagent/"

// writeChart writes the Helm chart as helm package does, and as an artefact of OCI that helm pull reads.
func writeChart(_ context.Context, r *release) error {
	entries, err := readStage(r.Source("deploy/chart"), "execagent")
	if err != nil {
		return err
	}
	var metadata map[string]any
	files := entries[:0]
	for _, e := range entries {
		if e.Mode.IsDir() {
			continue // helm package writes none
		}
		switch e.Name {
		case "execagent/Chart.yaml":
			e.Data = bytes.ReplaceAll(e.Data, []byte("ersion: 0.0.0-dev"), []byte("ersion: "+r.Version()))
			if err := yaml.Unmarshal(e.Data, &metadata); err != nil {
				return err
			}
		case "execagent/values.yaml":
			e.Data = bytes.ReplaceAll(e.Data, []byte("{repository: execagent/"), []byte("{repository: "+imageRegistry))
		}
		files = append(files, e)
	}
	if metadata["version"] != r.Version() || metadata["appVersion"] != r.Version() {
		return fmt.Errorf("deploy/chart/Chart.yaml has no placeholder 0.0.0-dev for the version")
	}
	license, err := os.ReadFile(r.Source("LICENSE"))
	if err != nil {
		return err
	}
	files = append(files, entry{Name: "execagent/LICENSE", Mode: 0o644, Data: license})
	var archive bytes.Buffer
	if err := packTar(&archive, r, files); err != nil {
		return err
	}
	packed := compressed(archive.Bytes())
	if err := writeFile(r.Artefact("execagent-chart-"+r.Version()+".tgz"), packed); err != nil {
		return err
	}
	return r.writeChartArtefact(metadata, packed)
}

// writeChartArtefact writes the manifest that helm push makes of a chart (https://helm.sh/docs/topics/registries/).
func (r *release) writeChartArtefact(metadata map[string]any, chart []byte) error {
	config, err := json.Marshal(metadata)
	if err != nil {
		return err
	}
	made, err := newDocument(chart, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", config, "application/vnd.cncf.helm.config.v1+json", nil)
	if err != nil {
		return err
	}
	return r.writeLayout("execagent-chart_"+r.Version()+"_oci.tar", func(path layout.Path) error {
		// A + is no character of a tag, so helm writes _ for it.
		name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(r.Version(), "+", "_")})
		return path.AppendImage(made, name)
	})
}
