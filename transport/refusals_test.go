package transport

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestManyRefusals: in each interval a few refusals of each kind are in the log, and how many
// there were beside them. A scan does not hide who tries tokens.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log record
		r := refusals{log: log.logger()}
		for interval := 1; interval <= 3; interval++ {
			for range maxRefusals + 80 {
				r.add("", slog.LevelDebug, "x", "a scan")
			}
			for range maxRefusals + interval {
				r.add(RefusedToken, slog.LevelWarn, "x", "a token")
			}
			time.Sleep(refusalInterval)
			synctest.Wait()
			text := log.String()
			for line, want := range map[string]int{`"reason":"a scan"`: maxRefusals * interval, `"reason":"a token"`: maxRefusals * interval, `"count":80,`: interval} {
				rig.Is(t, strings.Count(text, line), want, "after %d intervals: lines that have %s", interval, line)
			}
			if line := fmt.Sprintf(`"msg":"more clients refused","count":%d,"interval":%d,"kind":"token"`, interval, refusalInterval); !strings.Contains(text, line) {
				t.Errorf("no line has %s:\n%s", line, text)
			}
		}
	})
}
