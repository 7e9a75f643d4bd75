package catalog

// tag encloses the list, in a message of the role developer.
const tag = "skills_instructions"

const (
	noneAvailable  = "No skills of executors are available at the moment.\n"
	availableAgain = "The skills of executors that were listed before are available again.\n"
)

// Section records which list a model was told. The zero value is for a thread in which nothing was
// told yet.
type Section struct {
	listed string // the last list that was told
	gone   bool   // the model was told that the skills are gone
}

// Next returns the message for the model if list is the list now (client.md 6.3). ok is false if
// there is nothing new to tell.
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
