package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/registry/store"
)

// limitFlags are the limits of one principal. For a limit of 0, the limit of the server applies.
type limitFlags struct {
	Requests     float64      `group:"limits" placeholder:"N" help:"API requests per second. For this and the other limits, the default is the server's limit."`
	RequestBurst int          `group:"limits" placeholder:"N" help:"API requests in one burst."`
	Connections  int          `group:"limits" placeholder:"N" help:"Open websockets."`
	Streams      int          `group:"limits" placeholder:"N" help:"Streams of the principal's websockets."`
	Bytes        program.Size `group:"limits" placeholder:"N" help:"Bytes relayed per second."`
}

// limits returns the limits that the flags name.
func (f *limitFlags) limits() store.Limits {
	return store.Limits{Requests: f.Requests, RequestBurst: f.RequestBurst, Connections: f.Connections, Streams: f.Streams, Bytes: int64(f.Bytes)}
}

// keysCreateFlags describe a new key.
type keysCreateFlags struct {
	Role        string `required:"" enum:"executor,harness" env:"REGISTRY_KEY_ROLE" placeholder:"ROLE" help:"executor: the key registers environments. harness: the key connects to environments."`
	Environment string `required:"" env:"REGISTRY_KEY_ENVIRONMENT" placeholder:"PATTERN" help:"Ids of the environments that the key is for; * stands for any characters."`
	Label       string `env:"REGISTRY_KEY_LABEL" placeholder:"TEXT" help:"Text that the list of keys shows beside the key."`
	Expires     string `env:"REGISTRY_KEY_EXPIRES" placeholder:"WHEN" help:"How long the key is valid: a duration such as 720h, a date such as 2027-01-31, or a time of RFC 3339. Default: until it is revoked."`

	keyFlags
	limitFlags
	storeFlags
}

func (*keysCreateFlags) Help() string {
	return `Prints the key on standard output. The key cannot be printed again, because the registry stores only its hash. The key's id, which list shows and revoke takes, goes to standard error. This works whether or not a registry is running.

Examples:

    registry keys create --role executor --environment 'ci-*' --label 'build machines' --out executor.key
    registry keys create --role harness --environment ci-1 --expires 24h
    registry keys create --role executor --environment ci-1 --aws --out ~/.aws/credentials`
}

// Check finds a wrong value. The parser calls it.
func (f *keysCreateFlags) Check() error {
	if _, err := parseExpiry(f.Expires, time.Now()); err != nil {
		return err
	}
	if f.AWS && f.Role != "executor" {
		return errors.New("--aws is only for executors, because a harness signs nothing")
	}
	return f.storeFlags.Check()
}

// parseExpiry returns when a key expires. text is a time of RFC 3339, a date in the local time zone
// or a duration from now. For an empty text it returns the zero time: the key never expires.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.ParseInLocation(time.DateOnly, text, time.Local)
	}
	if err != nil {
		var d time.Duration
		if d, err = time.ParseDuration(text); err == nil {
			at = now.Add(d)
		}
	}
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("--expires %.100q is not a duration, a date or a time", text)
	case !at.After(now):
		return time.Time{}, fmt.Errorf("--expires %s is in the past", text)
	}
	return at.UTC().Truncate(time.Second), nil
}

func (f *keysCreateFlags) run(sys system) error {
	expires, err := parseExpiry(f.Expires, time.Now())
	if err != nil {
		return err
	}
	return f.withStore(sys, func(ctx context.Context, st *store.Store) error {
		var made string
		err := f.hand(ctx, sys, st, func() (string, store.Key, error) {
			text, key, err := st.CreateKey(ctx, store.Key{
				Label: f.Label, Role: f.Role, Environments: f.Environment, Expires: expires, Limits: f.limits(),
			})
			made = key.ID
			return text, key, err
		})
		if err != nil && made != "" {
			// Nobody can use a key that was not printed, and nobody would know that it must be
			// revoked.
			_, revokeErr := st.RevokeKey(ctx, made)
			err = errors.Join(err, revokeErr)
		}
		return err
	})
}

// keysRotateFlags name the key to rotate.
type keysRotateFlags struct {
	ID    string        `arg:"" help:"Id of the key, which list shows."`
	Grace time.Duration `default:"24h" env:"REGISTRY_KEY_GRACE" placeholder:"DURATION" help:"How long the replaced key stays valid; with 0 it is invalid at once. Default: ${default}."`

	keyFlags
	storeFlags
}

func (*keysRotateFlags) Help() string {
	return `Replaces a valid key by a new key with the same id, role, environments, limits and expiry, and prints the new key as create does. The replaced key stays valid for --grace; a key that was replaced earlier becomes invalid.

Open websockets stay open, even with --grace 0. An executor that got a signed URL with the replaced key can open websockets with it until 24 h after it got the URL, whatever --grace is. If a key has been stolen, use keys revoke, which ends all of this at once.

All processes of the registry must have a version that knows this command, because older versions refuse both keys.

Examples:

    registry keys rotate 0123456789abcdef --out executor.key
    registry keys rotate 0123456789abcdef --grace 0`
}

// Check finds a wrong value. The parser calls it.
func (f *keysRotateFlags) Check() error {
	if f.Grace < 0 {
		return fmt.Errorf("--grace %v is negative", f.Grace)
	}
	return f.storeFlags.Check()
}

func (f *keysRotateFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		err := f.hand(ctx, sys, st, func() (string, store.Key, error) { return st.RotateKey(ctx, f.ID, f.Grace) })
		if err != nil {
			return fmt.Errorf("key %.64q: %w", f.ID, err)
		}
		return nil
	})
}

// keyFlags name the place for a new key.
type keyFlags struct {
	AWS    bool   `name:"aws" help:"Print an access key for AWS signatures, as a file of AWS credentials, instead of the key itself. Executors of the direct transport that sign requests need this."`
	Out    string `type:"path" placeholder:"FILE" help:"Write the key to a new file that only this user can read, instead of printing it."`
	Output string `short:"o" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
}

// madeKey is a new key in the form that programs read.
type madeKey struct {
	store.Key
	Text string `json:"key,omitempty"`  // empty if the key is in a file
	File string `json:"file,omitempty"` // the file that has the key
	// With --aws, these replace the text.
	AccessKeyID     string `json:"access_key_id,omitempty"`
	SecretAccessKey string `json:"secret_access_key,omitempty"`
}

// hand makes a key and writes it to the place that the flags name. It creates the file before the
// key, so that each new key has a place.
func (f *keyFlags) hand(ctx context.Context, sys system, st *store.Store, create func() (string, store.Key, error)) (err error) {
	var file *os.File
	if f.Out != "" {
		if file, err = createFile(f.Out); err != nil {
			return err
		}
	}
	text, key, err := create()
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close(), os.Remove(f.Out))
		}
		return err
	}
	// From here on the key is valid, so its file stays even after an error.
	told := madeKey{Key: key, File: f.Out}
	secret := ""
	if f.AWS {
		if secret, err = st.AccessSecret(ctx, key.ID, text); err != nil {
			if file != nil {
				err = errors.Join(err, file.Close())
			}
			return fmt.Errorf("making the access key: %w", err)
		}
		told.AccessKeyID = key.ID
		text = "[default]\naws_access_key_id = " + key.ID + "\naws_secret_access_key = " + secret
	}
	switch {
	case file == nil && f.AWS:
		told.SecretAccessKey = secret
	case file == nil:
		told.Text = text
	default:
		_, err := fmt.Fprintln(file, text)
		if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
			return fmt.Errorf("writing the key: %w", err)
		}
	}
	switch {
	case f.Output == "json":
		err = program.PrintJSON(sys.stdout, told)
	case file == nil:
		_, err = fmt.Fprintln(sys.stdout, text)
	}
	if err != nil {
		return fmt.Errorf("printing the key: %w", err)
	}
	sys.complain("the id of the key is " + key.ID)
	if !key.FormerUntil.IsZero() {
		sys.complain("the replaced key is valid until " + key.FormerUntil.Format(time.RFC3339))
	}
	return nil
}

// createFile makes a file that only this user can read. It does not change an existing file.
func createFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s already exists and was not changed", path)
	}
	return file, err
}

// keysListFlags say how to print the keys.
type keysListFlags struct {
	listFlags
	storeFlags
}

func (f *keysListFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		keys, err := st.Keys(ctx)
		if err != nil {
			return err
		}
		now := time.Now()
		return program.PrintList(sys.stdout, f.json(), keys, "ID\tROLE\tENVIRONMENTS\tCREATED\tSTATE\tLAST USED\tLABEL", func(k store.Key) []any {
			state, used := "valid", "-"
			if !k.LastUsed.IsZero() {
				used = later(k.LastUsed, k.Created).Format(time.RFC3339)
			}
			switch {
			case !k.Revoked.IsZero():
				state = "revoked " + k.Revoked.Format(time.RFC3339)
			case !k.Expires.IsZero() && !now.Before(k.Expires):
				state = "expired " + k.Expires.Format(time.RFC3339)
			case !k.Expires.IsZero():
				state = "valid until " + k.Expires.Format(time.RFC3339)
			}
			if k.Revoked.IsZero() && now.Before(k.FormerUntil) {
				state += ", the replaced key until " + k.FormerUntil.Format(time.RFC3339)
			}
			return []any{k.ID, k.Role, k.Environments, k.Created.Format(time.RFC3339), state, used, printable(k.Label)}
		})
	})
}

// later returns the later time. The time of the last use is rounded down, and may be before the key
// was made.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// Help explains the column LAST USED.
func (*keysListFlags) Help() string {
	return `Lists the keys. LAST USED can be up to an hour too early, because it is written at most once an hour. A dash means that nobody has used the key with a registry of this version.`
}

// keysRevokeFlags name the key to revoke.
type keysRevokeFlags struct {
	ID string `arg:"" help:"Id of the key, which list shows."`
	storeFlags
}

func (f *keysRevokeFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		if _, err := st.RevokeKey(ctx, f.ID); err != nil {
			return fmt.Errorf("key %.64q: %w", f.ID, err)
		}
		return nil
	})
}

// listFlags say how to print a list.
type listFlags struct {
	JSON   bool   `name:"json" env:"REGISTRY_JSON" help:"Print a JSON array, as -o json does."`
	Output string `short:"o" default:"table" enum:"table,json" placeholder:"FORMAT" help:"Output format: table, or json for programs. Default: ${default}."`
}

func (f *listFlags) json() bool { return f.JSON || f.Output == "json" }

// printable quotes a text that has unprintable characters, because on a terminal these could hide
// or change the text around them.
func printable(text string) string {
	if program.Plain(text) != text {
		return strconv.Quote(text)
	}
	return text
}
