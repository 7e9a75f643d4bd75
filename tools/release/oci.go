package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeLayout writes an artefact that is an OCI layout in a tar archive (OCI Image Layout Specification 1.1).
func (r *release) writeLayout(artefact string, fill func(layout.Path) error) error {
	folder := filepath.Join(r.Work, "layouts", artefact)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := fill(path); err != nil {
		return err
	}
	entries, err := readStage(folder, ".")
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := packTar(&archive, r, entries[1:]); err != nil { // without the folder itself
		return err
	}
	return writeFile(r.Artefact(artefact), archive.Bytes())
}

// emptyConfig is the media type of the configuration {} of a manifest that is no image (OCI Image Specification
// 1.1, "Guidance for an Empty Descriptor").
const emptyConfig = "application/vnd.oci.empty.v1+json"

// A document is a manifest that is no image: its only layer is a file, such as a chart or an SBOM.
type document struct {
	manifest, config []byte
	layer            v1.Layer
}

// newDocument makes the manifest of a file. With a subject the file says something about that manifest.
func newDocument(file []byte, media string, config []byte, configMedia string, subject *v1.Descriptor) (v1.Image, error) {
	layer := static.NewLayer(file, types.MediaType(media))
	described, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	configuration, err := partial.Descriptor(static.NewLayer(config, types.MediaType(configMedia)))
	if err != nil {
		return nil, err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: *configuration, Layers: []v1.Descriptor{*described}}
	if subject != nil {
		m.ArtifactType, m.Subject = media, &v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(document{text, config, layer})
}

func (d document) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (d document) RawManifest() ([]byte, error)        { return d.manifest, nil }
func (d document) RawConfigFile() ([]byte, error)      { return d.config, nil }
func (d document) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if known, err := d.layer.Digest(); err != nil || known != digest {
		return nil, fmt.Errorf("there is no layer %s", digest)
	}
	return d.layer, nil
}
