package catalog

// tag is around the list, in the developer's role.
const tag = "skills_instructions"

const (
	noneAvailable  = "No skills of executors are available at the moment.\n"
	availableAgain = "The skills of executors that were listed before are available again.\n"
)

// Section is what a model has been told of skills. The zero value is that of a thread that has
// told nothing yet.
type Section struct {
	listed string // the last list that was told
	gone   bool   // it was taken back
}

// Next returns what has to be told when the list is now this one (client.md 6.3). Nothing is
// told while it stays the same.
func (s *Section) Next(list string) (message string, ok bool) {
	switch {
	case list == "" && (s.listed == "" || s.gone):
		return "", false
	case list == "":
		s.gone = true
		return wrap(noneAvailable), true
	case list == s.listed && !s.gone:
		return "", false
	case list == s.listed:
		s.gone = false
		return wrap(availableAgain), true
	}
	s.listed, s.gone = list, false
	return wrap(list), true
}

func wrap(body string) string { return "<" + tag + ">\n" + body + "</" + tag + ">" }
