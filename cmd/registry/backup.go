package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/secretfile"
)

// backupFlags name the file for a backup.
type backupFlags struct {
	File string `arg:"" type:"path" help:"File to write. It must not exist yet."`
	storeFlags
}

func (*backupFlags) Help() string {
	return `Writes everything that a registry must keep to a new file, as lines of JSON: API keys, identities, registrations, and the key with which all processes of the registry sign. Only this user can read the file. The registry may be running. The file holds only hashes of the API keys, but whoever has the file can sign URLs of this registry.

Examples:

    registry backup registry-2027-01-31.jsonl
    registry restore registry-2027-01-31.jsonl --data /srv/other`
}

func (f *backupFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		var values int
		err := newFile(f.File, func(file *os.File) (err error) {
			values, err = st.Backup(ctx, file)
			return err
		})
		if err == nil {
			sys.complain(fmt.Sprintf("%s has %d values", f.File, values))
		}
		return err
	})
}

// newFile makes a file that only this user can read, and calls write to fill it. After an error,
// the file does not exist.
func newFile(path string, write func(*os.File) error) error {
	file, err := createFile(path)
	if err != nil {
		return err
	}
	err = write(file)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// restoreFlags name the backup to restore.
type restoreFlags struct {
	File string `arg:"" type:"path" help:"File that registry backup has written."`
	storeFlags
}

func (*restoreFlags) Help() string {
	return `Writes a backup into an empty store: a new folder, or a NATS cluster that no registry has used. Start the registry afterwards. Executors and harnesses keep using the keys that they have.`
}

func (f *restoreFlags) run(sys system) error {
	// A line of the file can be a key with any rights, so nobody else may be able to change the
	// file.
	if err := secretfile.Refuse(f.File); err != nil {
		return err
	}
	file, err := os.Open(f.File)
	if err != nil {
		return err
	}
	defer file.Close()
	backup, err := store.ReadBackup(file)
	if err != nil {
		return err
	}
	return f.withStore(sys, func(ctx context.Context, st *store.Store) error {
		values, err := st.Restore(ctx, backup)
		if errors.Is(err, store.ErrNotEmpty) {
			return fmt.Errorf("%w: restore into a new folder, or into a NATS cluster that no registry has used", err)
		}
		if err == nil {
			sys.complain(fmt.Sprintf("%d values were restored", values))
		}
		return err
	})
}
