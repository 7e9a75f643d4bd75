package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxImage is in bytes: what is fetched of an image for one architecture.
const maxImage = 20_000_000

// An image holds one program, and nothing else. It is configured as the Dockerfile configures it that make image
// builds; test/release/images.sh compares the two.
type image struct {
	Program     string
	Title       string
	Description string
	Folder      string // of its state, which the user owns, or ""
	Config      v1.Config
}

// imageUser has neither a name nor rights.
const imageUser = 65532

func (r *release) images() []image {
	return []image{
		{
			Program: "agent", Title: "execagent agent",
			Description: "Runs commands, file operations and HTTP requests for clients of codex exec-server",
			Config: v1.Config{
				Entrypoint: []string{"/agent"}, Cmd: []string{"--listen", "ws://127.0.0.1:7000"},
				ExposedPorts: map[string]struct{}{"7000/tcp": {}},
				Healthcheck:  healthcheck("/agent", "health", "--probe", "127.0.0.1:7000"),
			},
		},
		{
			Program: "registry", Title: "execagent registry",
			Description: "Registry and rendezvous of execagent's remote mode", Folder: "data",
			Config: v1.Config{
				Entrypoint: []string{"/registry"}, Cmd: []string{"serve"},
				Env: []string{"REGISTRY_DATA=/data"}, Volumes: map[string]struct{}{"/data": {}},
				ExposedPorts: map[string]struct{}{"8080/tcp": {}},
				Healthcheck:  healthcheck("/registry", "status"),
			},
		},
	}
}

func healthcheck(argv ...string) *v1.HealthConfig {
	return &v1.HealthConfig{
		Test: append([]string{"CMD"}, argv...), Interval: 30 * time.Second, Timeout: 15 * time.Second, StartPeriod: 10 * time.Second,
	}
}

// writeImages writes each image for all architectures. The SBOMs of an image are manifests whose subject the
// image is.
func writeImages(_ context.Context, r *release) error {
	for _, i := range r.images() {
		index, err := r.index(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Program, err)
		}
		err = r.writeLayout("execagent-"+i.Program+"_"+r.Version()+"_oci.tar", func(path layout.Path) error {
			// A client that reads a layout takes the manifest of this name.
			return path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.Version()}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// index is the list of an image for each architecture, with the SBOMs of each.
func (r *release) index(i image) (v1.ImageIndex, error) {
	labels := map[string]string{
		"org.opencontainers.image.title":       i.Title,
		"org.opencontainers.image.description": i.Description,
		"org.opencontainers.image.source":      repositoryURL,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.Version(),
		"org.opencontainers.image.revision":    r.Commit,
		"org.opencontainers.image.created":     r.Time.Format(time.RFC3339),
	}
	list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range targetsOf("linux") {
		made, err := r.image(i, t, labels)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t, err)
		}
		descriptor, err := partial.Descriptor(made)
		if err != nil {
			return nil, err
		}
		platform := &v1.Platform{OS: t.System, Architecture: t.Architecture}
		list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: made, Descriptor: v1.Descriptor{Platform: platform}})
		for _, kind := range []struct{ ending, media string }{
			{spdxEnding, "application/spdx+json"}, {cycloneDXEnding, "application/vnd.cyclonedx+json"},
		} {
			text, err := os.ReadFile(r.Artefact(r.sbomName(i.Program, t) + kind.ending))
			if err != nil {
				return nil, err
			}
			sbom, err := newDocument(text, kind.media, []byte("{}"), emptyConfig, descriptor)
			if err != nil {
				return nil, err
			}
			// Its platform keeps engines from taking it for an image.
			unknown := &v1.Platform{OS: "unknown", Architecture: "unknown"}
			list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: sbom, Descriptor: v1.Descriptor{Platform: unknown, ArtifactType: kind.media}})
		}
	}
	return mutate.Annotations(list, labels).(v1.ImageIndex), nil
}

func (r *release) image(i image, t target, labels map[string]string) (v1.Image, error) {
	data, err := os.ReadFile(r.Stage(t, i.Program, "bin", i.Program))
	if err != nil {
		return nil, err
	}
	entries := []entry{{Name: i.Program, Mode: 0o755, Data: data}}
	if i.Folder != "" {
		entries = append(entries, entry{Name: i.Folder, Mode: fs.ModeDir | 0o755, Owner: imageUser})
	}
	var files bytes.Buffer
	if err := packTar(&files, r, entries); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9))
	if err != nil {
		return nil, err
	}
	size, err := layer.Size()
	if err != nil {
		return nil, err
	}
	if size > maxImage {
		return nil, fmt.Errorf("its layer has %d bytes, and the bound is %d", size, maxImage)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := i.Config
	config.User, config.Labels = fmt.Sprintf("%d:%d", imageUser, imageUser), labels
	made, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: t.System, Architecture: t.Architecture, Created: v1.Time{Time: r.Time}, Config: config,
		RootFS: v1.RootFS{Type: "layers"}, // the only type (OCI Image Specification 1.1, "rootfs")
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(made, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.Time}, CreatedBy: "execagent tools/release"}})
}
