package suite

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Report has the results of all cases that were asked for.
type Report struct {
	// About is what was checked.
	About   string
	Results []Result
}

// Count returns how many cases of an area have an outcome; "" is every area.
func (r *Report) Count(area string, o Outcome) (n int) {
	for _, result := range r.Results {
		if result.Outcome == o && (area == "" || area == result.Area) {
			n++
		}
	}
	return n
}

// maxWhy bounds a reason in a report, in bytes, because a part of it comes from the checked program.
const maxWhy = 4 << 10

// why is a reason that a terminal and a page can show: in one line, without control characters.
func (r *Result) why() string {
	why := r.Why
	if len(why) > maxWhy {
		why = why[:maxWhy] + " …"
	}
	quoted := strconv.Quote(strings.ReplaceAll(strings.ReplaceAll(why, "\n     ", "; "), "\n", "; "))
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Markdown writes the report for people, by area.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Conformance of `%s`\n\n", code(r.About))
	b.WriteString("| area | pass | fail | skipped | expected differences |\n|---|---|---|---|---|\n")
	row := func(name, area string) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, r.Count(area, Passed), r.Count(area, Failed), r.Count(area, Skipped), r.Count(area, Differs))
	}
	for _, area := range areas(r.Results) {
		row(area, area)
	}
	row("all", "")
	for _, part := range []struct {
		title   string
		outcome Outcome
	}{{"Failures", Failed}, {"Expected differences", Differs}, {"Skipped", Skipped}} {
		if r.Count("", part.outcome) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", part.title)
		for _, result := range r.Results {
			if result.Outcome == part.outcome {
				fmt.Fprintf(&b, "- **%s** (%s, %s): `%s`\n", result.Name, result.Area, result.Section, code(result.why()))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// code is a text for a code span of Markdown.
func code(text string) string { return strings.ReplaceAll(text, "`", "'") }

// The elements of JUnit's XML.
type (
	junit struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string     `xml:"classname,attr"`
		Name    string     `xml:"name,attr"`
		Time    string     `xml:"time,attr"`
		Failure *junitText `xml:"failure"`
		Skipped *junitText `xml:"skipped"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
	}
)

// JUnit writes the report as the XML that build servers read: a suite for each area. An expected difference is
// a skipped case.
func (r *Report) JUnit(w io.Writer) error {
	all := junit{Name: "conformance of " + r.About}
	for _, area := range areas(r.Results) {
		s := junitSuite{Name: area}
		for _, result := range r.Results {
			if result.Area != area {
				continue
			}
			c := junitCase{Class: area, Name: result.Name, Time: fmt.Sprintf("%.3f", result.Took.Seconds())}
			s.Tests++
			switch result.Outcome {
			case Failed:
				s.Failures++
				c.Failure = &junitText{result.Section + ": " + result.why()}
			case Skipped:
				s.Skipped++
				c.Skipped = &junitText{result.why()}
			case Differs:
				s.Skipped++
				c.Skipped = &junitText{"expected difference: " + result.why()}
			}
			s.Cases = append(s.Cases, c)
		}
		all.Tests, all.Failures, all.Skipped = all.Tests+s.Tests, all.Failures+s.Failures, all.Skipped+s.Skipped
		all.Suites = append(all.Suites, s)
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append([]byte(xml.Header), append(text, '\n')...))
	return err
}
