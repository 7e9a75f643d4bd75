package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/strictjson"
)

// maxAuthFile is the greatest length of auth.json, in bytes.
const maxAuthFile = 1 << 20

// authFile is the content of auth.json in CODEX_HOME (remote.md 12.2): the parts
// that we use, and the rest, so that the whole file can be written back.
type authFile struct {
	redacted

	all    strictjson.Map // of the file
	tokens strictjson.Map // of its member tokens
	apiKey string         // at most one of apiKey and signIn is set: the one to use
	signIn *tokens
}

// tokens is a ChatGPT sign-in at one moment. It does not change.
type tokens struct {
	redacted

	id, access, refresh string
	accountID           string
	lastRefresh         time.Time // zero: unknown

	account account   // made of accountID and the id token
	expiry  time.Time // of the access token; zero if the token does not say
}

// readAuthFile reads auth.json. It returns nil and no error if there is none.
func readAuthFile(path string) (*authFile, error) {
	data, err := paths.ReadRegular(path, maxAuthFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer clear(data)
	parsed, err := parseAuthFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return parsed, nil
}

// parseAuthFile reads the members that we use. Errors name members, never values.
func parseAuthFile(data []byte) (*authFile, error) {
	all, err := strictjson.ParseMap(data)
	if err != nil {
		return nil, fmt.Errorf("the content %w", err)
	}
	f := &authFile{all: all}
	mode, err := all.Text("auth_mode")
	if err != nil {
		return nil, fmt.Errorf("auth_mode %w", err)
	}
	key, err := all.Text("OPENAI_API_KEY")
	if err != nil {
		return nil, fmt.Errorf("OPENAI_API_KEY %w", err)
	}
	// auth_mode decides if it is there. Otherwise a key is preferred to tokens, as
	// in the reference.
	if mode == "apikey" || mode == "" && key != "" {
		f.apiKey = key
		return f, nil
	}
	if !all.Has("tokens") {
		return f, nil
	}
	if f.tokens, err = strictjson.ParseMap(all["tokens"]); err != nil {
		return nil, fmt.Errorf("tokens %w", err)
	}
	last, err := all.Text("last_refresh")
	if err != nil {
		return nil, fmt.Errorf("last_refresh %w", err)
	}
	t := new(tokens)
	for name, into := range map[string]*string{
		"id_token": &t.id, "access_token": &t.access, "refresh_token": &t.refresh, "account_id": &t.accountID,
	} {
		if *into, err = f.tokens.Text(name); err != nil {
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

// derive checks the tokens, and reads from them the account and when they expire.
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
	if access, err := parseJWT(t.access); err == nil { // an access token need not be a JWT
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

// writeAuthFile overwrites the file at path in place and makes it readable by its
// owner only. It does not replace the file by a new one, because a sandbox hides the
// file that existed when the sandbox was made. Confined commands could see a new
// file for a moment, and the sandboxes that must hide it would end. If data cannot
// be written completely, the old content is put back.
func writeAuthFile(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if err := f.Chmod(mode &^ 0o077); err != nil {
			return err
		}
	}
	old, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
	defer clear(old)
	if err != nil {
		return err
	}
	// Line feeds fill the file up to its old length until all of data is written.
	// A program that reads the file at that time finds no rest of the old text
	// behind the new text.
	padded := append(data, bytes.Repeat([]byte{'\n'}, max(0, len(old)-len(data)))...)
	defer clear(padded)
	if _, err = f.WriteAt(padded, 0); err != nil {
		_, undone := f.WriteAt(old, 0)
		return errors.Join(err, undone, f.Truncate(int64(len(old))))
	}
	return errors.Join(f.Truncate(int64(len(data))), f.Sync())
}
