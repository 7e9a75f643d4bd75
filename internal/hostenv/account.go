package hostenv

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// groupFile is the database of groups.
const groupFile = "/etc/group"

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
	passwd, err := entries(passwdFile, 7) // name:password:uid:gid:gecos:home:shell
	if err != nil {
		return nil, err
	}
	groups, err := entries(groupFile, 4) // name:password:gid:members
	if err != nil {
		return nil, err
	}
	a := &Account{}
	uid, numeric := number(user)
	at := slices.IndexFunc(passwd, func(entry []string) bool {
		id, ok := number(entry[2])
		return numeric && ok && id == uid || !numeric && entry[0] == user
	})
	primary := ""
	switch {
	case at >= 0:
		entry := passwd[at]
		a.Name, a.Home, a.Shell, primary = entry[0], entry[5], entry[6], entry[3]
		if uid, numeric = number(entry[2]); !numeric {
			return nil, fmt.Errorf("user: %s has no number for %.64q", passwdFile, user)
		}
	case !numeric:
		return nil, fmt.Errorf("user: %.64q is neither in %s nor a number", user, passwdFile)
	case group == "":
		return nil, fmt.Errorf("group: the user %d is not in %s, so a group has to be named", uid, passwdFile)
	}
	a.UID = uid
	named := cmp.Or(group, primary)
	gid, known := number(named)
	for _, entry := range groups {
		id, ok := number(entry[2])
		if !ok {
			continue
		}
		if !known && entry[0] == named {
			gid, known = id, true
		}
		if a.Name != "" && slices.Contains(strings.Split(entry[3], ","), a.Name) {
			a.Groups = append(a.Groups, id)
		}
	}
	if !known {
		return nil, fmt.Errorf("group: %.64q is neither in %s nor a number", named, groupFile)
	}
	a.GID = gid
	if own, ok := number(primary); ok && !slices.Contains(a.Groups, own) {
		a.Groups = append(a.Groups, own)
	}
	return a, nil
}

// number reads the number of a user or a group. The greatest one stands for none.
func number(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// entries returns the well-formed lines of a file, each with that many fields. A missing file has none.
func entries(file string, fields int) (all [][]string, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxPasswdSize))
	lines.Buffer(nil, maxPasswdSize) // a group can have thousands of members
	for lines.Scan() {
		if entry := strings.Split(lines.Text(), ":"); len(entry) == fields {
			all = append(all, entry)
		}
	}
	return all, lines.Err()
}
