// lint reads dashboards as strictly as Grafana's schema allows and parses every PromQL expression in them. usage: lint FILE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/prometheus/promql/parser"
)

var (
	span     = regexp.MustCompile(`\[[^\]]*\$[^\]]*\]`)
	variable = regexp.MustCompile(`\$(\{[^}]+\}|\w+)`)
)

// expressions calls f with the value of every field "expr".
func expressions(value any, f func(string)) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if text, ok := inner.(string); ok && key == "expr" {
				f(text)
			}
			expressions(inner, f)
		}
	case []any:
		for _, inner := range v {
			expressions(inner, f)
		}
	}
}

func check(name string, complain func(string, error)) int {
	raw, err := os.ReadFile(name)
	if err != nil {
		complain("read", err)
		return 0
	}
	var d dashboard.Dashboard
	// The strict reader returns a list of errors that is not nil even when it is empty.
	if err := d.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		complain("schema", err)
	} else if err := d.Validate(); err != nil {
		complain("schema", err)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		complain("json", err)
	}
	n := 0
	promql := parser.NewParser(parser.Options{})
	expressions(tree, func(text string) {
		n++
		plain := variable.ReplaceAllString(span.ReplaceAllString(text, "[5m]"), "x")
		if _, err := promql.ParseExpr(plain); err != nil {
			complain(text, err)
		}
	})
	return n
}

func main() {
	plugins.RegisterDefaultPlugins()
	bad := false
	for _, name := range os.Args[1:] {
		n := check(name, func(what string, err error) {
			bad = true
			fmt.Printf("%s: %s: %v\n", name, what, err)
		})
		fmt.Printf("%s: %d expressions\n", name, n)
		bad = bad || n == 0
	}
	if bad {
		os.Exit(1)
	}
}
