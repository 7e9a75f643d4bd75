package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// maxAuthFile is how long auth.json may be, in bytes.
const maxAuthFile = 1 << 20

// authFile is auth.json of CODEX_HOME: what we use of it, and everything else so that it can be written back
// (remote.md 12.2).
type authFile struct {
	redacted

	all    members // of the file
	tokens members // of its member tokens
	apiKey string  // of either OPENAI_API_KEY or tokens one counts; the other is left out
	signIn *tokens
}

// tokens is a ChatGPT sign-in at one moment. It does not change.
type tokens struct {
	redacted

	id, access, refresh string
	accountID           string
	lastRefresh         time.Time // zero: unknown

	account account   // what accountID and the id token say
	expiry  time.Time // of the access token; zero if it does not tell
}

// readAuthFile returns nil if there is none.
func readAuthFile(path string) (*authFile, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAuthFile+1))
	defer clear(data)
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxAuthFile:
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxAuthFile)
	}
	parsed, err := parseAuthFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return parsed, nil
}

// parseAuthFile reads what counts. Errors name members, never values.
func parseAuthFile(data []byte) (*authFile, error) {
	all, err := decodeMembers(data)
	if err != nil {
		return nil, fmt.Errorf("the content %w", err)
	}
	f := &authFile{all: all}
	mode, err := all.text("auth_mode")
	if err != nil {
		return nil, fmt.Errorf("auth_mode %w", err)
	}
	key, err := all.text("OPENAI_API_KEY")
	if err != nil {
		return nil, fmt.Errorf("OPENAI_API_KEY %w", err)
	}
	// auth_mode decides where it is there; otherwise a key goes before tokens, as in the reference.
	if mode == "apikey" || mode == "" && key != "" {
		f.apiKey = key
		return f, nil
	}
	raw, ok := all["tokens"]
	if !ok || string(raw) == "null" {
		return f, nil
	}
	if f.tokens, err = decodeMembers(raw); err != nil {
		return nil, fmt.Errorf("tokens %w", err)
	}
	last, err := all.text("last_refresh")
	if err != nil {
		return nil, fmt.Errorf("last_refresh %w", err)
	}
	t := new(tokens)
	for name, into := range map[string]*string{
		"id_token": &t.id, "access_token": &t.access, "refresh_token": &t.refresh, "account_id": &t.accountID,
	} {
		if *into, err = f.tokens.text(name); err != nil {
			return nil, fmt.Errorf("tokens.%s %w", name, err)
		}
	}
	if t.lastRefresh, err = time.Parse(time.RFC3339Nano, last); err != nil {
		t.lastRefresh = time.Time{}
	}
	if err := t.derive(); err != nil {
		return nil, err
	}
	f.signIn = t
	return f, nil
}

// derive checks the tokens and reads what they say of themselves.
func (t *tokens) derive() error {
	if err := checkToken(t.access); err != nil {
		return fmt.Errorf("tokens.access_token %w", err)
	}
	id, err := parseJWT(t.id)
	if err != nil {
		return fmt.Errorf("tokens.id_token %w", err)
	}
	if t.accountID != "" {
		if err := checkToken(t.accountID); err != nil {
			return fmt.Errorf("tokens.account_id %w", err)
		}
	}
	t.account = account{id: t.accountID, fedRAMP: id.account().fedRAMP}
	if access, err := parseJWT(t.access); err == nil { // an opaque one is as good
		t.expiry, _ = access.expiry()
	}
	return nil
}

// encode returns the file with t as its tokens and everything else as it was.
func (f *authFile) encode(t *tokens) ([]byte, error) {
	texts := map[string]string{"id_token": t.id, "access_token": t.access, "refresh_token": t.refresh}
	for name, value := range texts {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		f.tokens[name] = raw
	}
	var err error
	if f.all["tokens"], err = json.Marshal(f.tokens); err != nil {
		return nil, err
	}
	if f.all["last_refresh"], err = json.Marshal(t.lastRefresh.UTC().Format(time.RFC3339Nano)); err != nil {
		return nil, err
	}
	return json.MarshalIndent(f.all, "", "  ")
}

// write puts data in the place of the file at path, whole or not at all, readable by its owner only. A symbolic link stays one.
func writeAuthFile(path string, data []byte) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".auth-*.json") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
