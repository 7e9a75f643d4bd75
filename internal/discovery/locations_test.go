package discovery

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestLocationsWait: links to fifos among the folders of plugins hold nobody up.
func TestLocationsWait(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cache := home + "/plugins/cache/"
	err := errors.Join(os.MkdirAll(cache+"market/plugin/1", 0o700), unix.Mkfifo(home+"/fifo", 0o600),
		os.Symlink(home+"/fifo", cache+"fifo"), os.Symlink(home+"/fifo", cache+"market/fifo"))
	rig.Must(t, err)
	all, incomplete := Places{CodexHome: home}.Locations()
	rig.Is(t, !incomplete && len(all) == 2 && all[0].ID == "plugin@market", true, "%v, incomplete %v: all are found", all, incomplete)
}
