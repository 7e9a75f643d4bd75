package hostenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/paths"
)

// The databases of users and of groups, passwd(5) and group(5). Only the files are read, because the name
// service (nsswitch.conf(5)) would need cgo.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// Bounds of such a file, in bytes. A group can have thousands of members.
const (
	maxAccounts    = 64 << 20
	maxAccountLine = 1 << 20
)

// Account is a user and a group that a command can run as.
type Account struct {
	UID, GID uint32
	Groups   []uint32 // the supplementary groups
	// Name, Home and Shell are "" if the user is a number without an entry.
	Name, Home, Shell string
}

// FindAccount looks up a user and a group, each by name or number, in the files of this host. Without a group
// it is the user's. The supplementary groups are those of the user in any case. The error names what is not
// known.
func FindAccount(user, group string) (*Account, error) {
	return findAccount(passwdFile, groupFile, user, group)
}

func findAccount(passwdFile, groupFile, user, group string) (*Account, error) {
	uid, numeric := number(user)
	a, found, err := findUser(passwdFile, func(name string, id uint32) bool {
		return numeric && id == uid || !numeric && name == user
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("user: %w", err)
	case !found && !numeric:
		return nil, fmt.Errorf("user: %.64q is neither in %s nor a number", user, passwdFile)
	case !found && group == "":
		return nil, fmt.Errorf("group: the user %d is not in %s, so a group has to be named", uid, passwdFile)
	case !found:
		a.UID = uid
	}
	gid, known := number(group)
	if group == "" {
		gid, known = a.GID, true
	}
	err = eachEntry(groupFile, 4, func(entry []string) bool { // name:password:gid:members
		id, ok := number(entry[2])
		if !ok {
			return true
		}
		if !known && entry[0] == group {
			gid, known = id, true
		}
		if found && slices.Contains(strings.Split(entry[3], ","), a.Name) {
			a.Groups = append(a.Groups, id)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	if !known {
		return nil, fmt.Errorf("group: %.64q is neither in %s nor a number", group, groupFile)
	}
	if found && !slices.Contains(a.Groups, a.GID) {
		a.Groups = append(a.Groups, a.GID)
	}
	a.GID = gid
	return &a, nil
}

// currentUser returns the entry of the user that this process runs as. The zero value is a user without one.
func currentUser() Account {
	uid := uint32(os.Getuid())
	a, _, _ := findUser(passwdFile, func(_ string, id uint32) bool { return id == uid })
	return a
}

// findUser returns the first well-formed entry of a file that is the right one.
func findUser(file string, right func(name string, uid uint32) bool) (a Account, found bool, err error) {
	err = eachEntry(file, 7, func(entry []string) bool { // name:password:uid:gid:gecos:home:shell
		uid, ok := number(entry[2])
		gid, also := number(entry[3])
		if found = ok && also && entry[0] != "" && right(entry[0], uid); found {
			a = Account{UID: uid, GID: gid, Name: entry[0], Home: entry[5], Shell: entry[6]}
		}
		return !found
	})
	return a, found, err
}

// number reads the number of a user or a group. The greatest one stands for none.
func number(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// eachEntry calls take with the fields of each line that has so many, until take returns false. A missing file
// has no lines. A file that is not read to its end is an error, because what is missing could be what counts.
func eachEntry(file string, fields int, take func(entry []string) bool) error {
	f, _, err := paths.OpenRegular(file, 0) // the image of a container can have a FIFO there
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	from := &io.LimitedReader{R: f, N: maxAccounts + 1}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxAccountLine)
	for lines.Scan() {
		if entry := strings.Split(lines.Text(), ":"); len(entry) == fields && !take(entry) {
			return nil
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s has a line of more than %d bytes", file, maxAccountLine)
	case err != nil:
		return fmt.Errorf("reading %s: %w", file, err)
	case from.N == 0:
		return fmt.Errorf("%s has more than %d bytes", file, maxAccounts)
	}
	return nil
}
