package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/strictjson"
)

// identitiesAddFlags name an agent identity that may be an executor, and its environments.
type identitiesAddFlags struct {
	RuntimeID   string `arg:"" name:"runtime-id" help:"Runtime id of the agent."`
	PublicKey   string `required:"" env:"REGISTRY_IDENTITY_PUBLIC_KEY" placeholder:"BASE64" help:"Ed25519 public key of the agent: base64 of its 32 bytes or of its SubjectPublicKeyInfo (DER)."`
	Environment string `required:"" env:"REGISTRY_IDENTITY_ENVIRONMENT" placeholder:"PATTERN" help:"Ids of the environments that the agent may register; * stands for any characters."`

	limitFlags
	storeFlags
}

func (*identitiesAddFlags) Help() string {
	return `Replaces an existing identity with the same runtime id.`
}

// Check finds a wrong value. The parser calls it.
func (f *identitiesAddFlags) Check() error {
	if _, err := parsePublicKey(f.PublicKey); err != nil {
		return err
	}
	return f.storeFlags.Check()
}

// parsePublicKey reads an Ed25519 key: base64 of its 32 bytes or of its DER form.
func parsePublicKey(text string) (ed25519.PublicKey, error) {
	data, err := strictjson.StdBase64.Decode(text)
	if err != nil {
		return nil, errors.New("--public-key is not base64")
	}
	if len(data) == ed25519.PublicKeySize {
		return data, nil
	}
	parsed, err := x509.ParsePKIXPublicKey(data)
	if err != nil {
		return nil, fmt.Errorf("--public-key is not a key of %d bytes or a public key in DER", ed25519.PublicKeySize)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("--public-key is not an Ed25519 key")
	}
	return key, nil
}

func (f *identitiesAddFlags) run(sys system) error {
	key, err := parsePublicKey(f.PublicKey)
	if err != nil {
		return err
	}
	return f.withStore(sys, func(ctx context.Context, st *store.Store) error {
		return st.AddIdentity(ctx, store.Identity{
			RuntimeID: f.RuntimeID, PublicKey: key, Environments: f.Environment, Limits: f.limits(),
		})
	})
}

// identitiesListFlags say how to print the identities.
type identitiesListFlags struct {
	listFlags
	storeFlags
}

func (f *identitiesListFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		identities, err := st.Identities(ctx)
		if err != nil {
			return err
		}
		return program.PrintList(sys.stdout, f.json(), identities, "RUNTIME ID\tENVIRONMENTS\tADDED\tPUBLIC KEY", func(id store.Identity) []string {
			return []string{id.RuntimeID, id.Environments, id.Created.Format(time.RFC3339), base64.StdEncoding.EncodeToString(id.PublicKey)}
		})
	})
}

// identitiesRemoveFlags name the identity to remove.
type identitiesRemoveFlags struct {
	RuntimeID string `arg:"" name:"runtime-id" help:"Runtime id of the agent."`
	storeFlags
}

func (f *identitiesRemoveFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		if err := st.RemoveIdentity(ctx, f.RuntimeID); err != nil {
			return fmt.Errorf("identity %.64q: %w", f.RuntimeID, err)
		}
		return nil
	})
}
