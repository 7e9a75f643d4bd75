package capability

// Room has a thread keep less than [MaxKept], of which a test would take long.
func (t *Thread) Room(bytes int) { t.room = bytes }
