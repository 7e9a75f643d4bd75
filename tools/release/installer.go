package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
)

// installer is the file that users run to install a release.
const installer = "install.sh"

// writeInstaller writes the version and the public key into the installer. So an installer that was kept verifies later
// releases, too, and only those of the same key.
func writeInstaller(_ context.Context, r *release) error {
	file := r.Artefact(installer)
	if err := copyFile(r.Source("deploy", installer), file); err != nil {
		return err
	}
	if err := rewrite(file, "\nversion=\n", fmt.Sprintf("\nversion='%s'\n", r.Version())); err != nil {
		return err
	}
	if len(r.PublicKey) == 0 {
		return nil
	}
	return rewrite(file, "\nkey=\n", fmt.Sprintf("\nkey='%s'\n", strings.TrimSpace(string(r.PublicKey))))
}

// readPublicKey reads the key that a release was signed with, for whoever makes the release again and has no other.
func readPublicKey(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PUBLIC KEY" || !bytes.Equal(pem.EncodeToMemory(block), data) {
		return nil, fmt.Errorf("%s is not a public key, and nothing else, as cosign.pub is", path)
	}
	return data, nil
}
