// generate writes the dashboard to stdout. Every panel answers one question that an operator asks; its title is that question.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// What every query keeps to. Prometheus may rename the label namespace, since targets have one of their own, so it is never used.
const (
	pods  = `instance=~"$instance"`
	hosts = `instance=~"$instance", host=~"$host"`
)

type query struct{ expr, legend string }

type panel struct {
	title, about, unit string
	queries            []query
	// A number instead of a curve; red from here on, where it is not zero.
	number bool
	red    float64
	// Red below, not above.
	below bool
	width uint32
	stack bool
}

type row struct {
	title  string
	panels []panel
}

func rate(name, selector string) string {
	return fmt.Sprintf(`rate(tak_ingress_%s{%s}[$__rate_interval])`, name, selector)
}

func quantile(q float64, name, by, selector string) string {
	return fmt.Sprintf(`histogram_quantile(%g, sum by (%s) (%s))`, q, by, rate(name+"_bucket", selector))
}

func rows() []row {
	class := fmt.Sprintf(`sum by (class) (label_replace(%s, "class", "$1", "code", "(.).*"))`, rate("requests_total", hosts))
	failed := `instance=~"$instance", host=~"$host", code=~"5.."`
	refused := `instance=~"$instance", host=~"$host", code=~"401|403|408|413|421|429|431|501"`
	return []row{
		{"At a glance", []panel{
			{title: "Pods that answer", about: "Pods that Prometheus can scrape. Less than the number of nodes: look at Pods and events of the namespace.", unit: "short", number: true, width: 4,
				queries: []query{{`count(tak_ingress_build_info{` + pods + `})`, ""}}, red: 1, below: true},
			{title: "Requests per second", unit: "reqps", number: true, width: 4,
				queries: []query{{`sum(` + rate("requests_total", hosts) + `)`, ""}}},
			{title: "Share of 5xx", about: "Of the requests that matched a route. 501 is a route closed for a wrong configuration.", unit: "percentunit", number: true, width: 4, red: 0.01,
				queries: []query{{`(sum(` + rate("requests_total", failed) + `) or vector(0)) / sum(` + rate("requests_total", hosts) + `)`, ""}}},
			{title: "99 of 100 requests took at most", unit: "s", number: true, width: 4, red: 5,
				queries: []query{{quantile(0.99, "request_duration_seconds", "le", hosts), ""}}},
			{title: "Next certificate ends in", about: "Of those that are served now.", unit: "s", number: true, width: 4, red: 7 * 86400, below: true,
				queries: []query{{`min(tak_ingress_certificate_not_after_timestamp_seconds{` + pods + `}) - time()`, ""}}},
			{title: "Mistakes in objects", about: "Events on the objects say what is wrong.", unit: "short", number: true, width: 4, red: 1,
				queries: []query{{`max(sum by (instance) (tak_ingress_object_errors{` + pods + `})) or vector(0)`, ""}}},
		}},
		{"Requests", []panel{
			{title: "What is answered?", about: "By class of status.", unit: "reqps", stack: true, queries: []query{{class, "{{class}}xx"}}},
			{title: "Who gets the traffic?", about: "The ten busiest hosts.", unit: "reqps", queries: []query{{`topk(10, sum by (host) (` + rate("requests_total", hosts) + `))`, "{{host}}"}}},
			{title: "What does the proxy itself refuse?", about: "Statuses of access, size, time and rate; a backend may have sent some of them too.", unit: "reqps",
				queries: []query{{`sum by (code) (` + rate("requests_total", refused) + `)`, "{{code}}"}}},
			{title: "What matches no route?", about: "no_host: unknown host. no_path: the host has no such path. malformed: not HTTP that has one meaning.", unit: "reqps",
				queries: []query{{`sum by (reason) (` + rate("unmatched_requests_total", pods) + `)`, "{{reason}}"}}},
		}},
		{"Limits and browsers", []panel{
			{title: "Who is slowed down?", about: "Refused by the limits of their route, the ten hosts with the most. Logins that are throttled are not among these.", unit: "reqps",
				queries: []query{{`topk(10, sum by (host) (` + rate("rate_limited_requests_total", hosts) + `))`, "{{host}}"}}},
			{title: "Which share of requests do limits refuse?", about: "The ten worst hosts.", unit: "percentunit",
				queries: []query{{`topk(10, sum by (host) (` + rate("rate_limited_requests_total", hosts) + `) / sum by (host) (` + rate("requests_total", hosts) + `))`, "{{host}}"}}},
			{title: "How many preflights are answered?", about: "CORS preflights that no backend saw.", unit: "reqps",
				queries: []query{{`topk(10, sum by (host) (` + rate("cors_preflights_total", hosts) + `))`, "{{host}}"}}},
			{title: "Are certificates requested?", about: "Writes to cert-manager's Certificates by what became of them. forbidden: the role lacks a rule.", unit: "ops",
				queries: []query{{`sum by (result) (` + rate("status_writes_total", pods+`, kind="certificate"`) + `) or vector(0)`, "{{result}}"}}},
		}},
		{"Errors", []panel{
			{title: "Which hosts fail?", about: "Share of 5xx, the ten worst.", unit: "percentunit",
				queries: []query{{`topk(10, sum by (host) (` + rate("requests_total", failed) + `) / sum by (host) (` + rate("requests_total", hosts) + `))`, "{{host}}"}}},
			{title: "Why do backends fail?", about: "dns: no address. connect: refused or no way. tls: handshake or certificate. timeout, reset, protocol: after the connection stood.", unit: "reqps",
				queries: []query{{`sum by (reason) (` + rate("upstream_errors_total", hosts) + `)`, "{{reason}}"}}},
			{title: "Whose backends fail?", unit: "reqps", queries: []query{{`topk(10, sum by (ingress, host) (` + rate("upstream_errors_total", hosts) + `))`, "{{ingress}} {{host}}"}}},
			{title: "Is anything tried again, lost or panicking?", about: "Panics and dropped log lines should be none, ever.", unit: "ops", queries: []query{
				{`sum(` + rate("upstream_retries_total", hosts) + `) or vector(0)`, "tried again"},
				{`sum(` + rate("request_panics_total", pods) + `)`, "panics"},
				{`sum(` + rate("access_log_dropped_total", pods) + `)`, "log lines dropped"}}},
		}},
		{"Latency", []panel{
			{title: "How long do requests take?", unit: "s", queries: []query{
				{quantile(0.5, "request_duration_seconds", "le", hosts), "half"},
				{quantile(0.95, "request_duration_seconds", "le", hosts), "95 of 100"},
				{quantile(0.99, "request_duration_seconds", "le", hosts), "99 of 100"}}},
			{title: "Is it the proxy or the backend?", about: "95 of 100. The time above the backend's is the client's own and the proxy's.", unit: "s", queries: []query{
				{quantile(0.95, "request_duration_seconds", "le", hosts), "whole request"},
				{quantile(0.95, "upstream_response_duration_seconds", "le", hosts), "backend, to the head of its response"},
				{quantile(0.95, "upstream_connect_duration_seconds", "le", hosts), "new connections to backends"}}},
			{title: "Which hosts are slow?", about: "95 of 100, the ten slowest.", unit: "s",
				queries: []query{{`topk(10, ` + quantile(0.95, "request_duration_seconds", "le, host", hosts) + `)`, "{{host}}"}}},
			{title: "How much is moved?", about: "Bodies, without heads.", unit: "Bps", queries: []query{
				{`sum(` + rate("request_size_bytes_sum", hosts) + `)`, "from clients"},
				{`sum(` + rate("response_size_bytes_sum", hosts) + `)`, "to clients"}}},
		}},
		{"Connections and TLS", []panel{
			{title: "What is open?", unit: "short", queries: []query{
				{`sum(tak_ingress_client_connections{` + pods + `})`, "client connections"},
				{`sum(tak_ingress_active_requests{` + pods + `})`, "requests in flight"},
				{`sum(tak_ingress_upgraded_tunnels{` + pods + `})`, "tunnels"}}},
			{title: "Do handshakes succeed?", unit: "ops", queries: []query{{`sum by (version, result) (` + rate("tls_handshakes_total", pods) + `)`, "{{version}} {{result}}"}}},
			{title: "Who gets the self-signed certificate?", about: "Handshakes for names that nobody declared, or whose Secret cannot be used.", unit: "ops",
				queries: []query{{`sum(` + rate("tls_fallback_certificate_total", pods) + `)`, "self-signed"}}},
			{title: "When do certificates end?", about: "The ten that end first.", unit: "s",
				queries: []query{{`bottomk(10, min by (secret) (tak_ingress_certificate_not_after_timestamp_seconds{` + pods + `})) - time()`, "{{secret}}"}}},
		}},
		{"Controller", []panel{
			{title: "Has every kind been read?", about: "0: its first list is missing. A missing right is named in the log.", unit: "short",
				queries: []query{{`min by (kind) (tak_ingress_watch_synced{` + pods + `})`, "{{kind}}"}}},
			{title: "Do watches break?", unit: "ops", queries: []query{{`sum by (kind) (` + rate("watch_restarts_total", pods) + `) or vector(0)`, "{{kind}}"}}},
			{title: "Is the configuration followed?", about: "Number of the configuration; it grows with changes of objects, on every Pod for itself.", unit: "short",
				queries: []query{{`tak_ingress_snapshot_generation{` + pods + `}`, "{{instance}}"}}},
			{title: "How long does a change take to translate?", unit: "s", queries: []query{
				{quantile(0.99, "snapshot_build_duration_seconds", "le", pods), "99 of 100"},
				{`sum(` + rate("snapshot_build_failures_total", pods) + `)`, "failures a second"}}},
			{title: "What is wrong in whose objects?", unit: "short", queries: []query{{`max by (kind, reason) (tak_ingress_object_errors{` + pods + `})`, "{{kind}} {{reason}}"}}},
			{title: "What is served?", unit: "short", queries: []query{{`max by (kind) (tak_ingress_routes{` + pods + `})`, "routes of {{kind}}"}}},
			{title: "Are Events written?", unit: "ops", queries: []query{{`sum by (result) (` + rate("events_total", pods) + `) or vector(0)`, "{{result}}"}}},
			{title: "Which versions run?", unit: "short", queries: []query{{`count by (version) (tak_ingress_build_info{` + pods + `})`, "{{version}}"}}},
		}},
		{"Process", []panel{
			{title: "CPU", about: "Of 2 that the shipped limit allows.", unit: "short", queries: []query{{`rate(process_cpu_seconds_total{` + pods + `}[$__rate_interval]) and on (instance) tak_ingress_build_info`, "{{instance}}"}}},
			{title: "Memory", about: "Of 1 GiB that the shipped limit allows.", unit: "bytes", queries: []query{{`process_resident_memory_bytes{` + pods + `} and on (instance) tak_ingress_build_info`, "{{instance}}"}}},
			{title: "File descriptors", about: "Share of the limit; each connection takes one.", unit: "percentunit", queries: []query{
				{`process_open_fds{` + pods + `} / process_max_fds{` + pods + `} and on (instance) tak_ingress_build_info`, "{{instance}}"}}},
			{title: "Up since", unit: "s", queries: []query{{`time() - process_start_time_seconds{` + pods + `} and on (instance) tak_ingress_build_info`, "{{instance}}"}}},
		}},
	}
}

var (
	kind   = "prometheus"
	uid    = "${datasource}"
	source = common.DataSourceRef{Type: &kind, Uid: &uid}
)

func build(p panel) cog.Builder[dashboard.Panel] {
	width := p.width
	if width == 0 {
		width = 12
	}
	if p.number {
		b := stat.NewPanelBuilder().Title(p.title).Description(p.about).Unit(p.unit).Datasource(source).Height(4).Span(width)
		if p.red != 0 {
			good, bad := "green", "red"
			if p.below {
				good, bad = bad, good
			}
			b = b.Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).
				Steps([]dashboard.Threshold{{Color: good}, {Color: bad, Value: &p.red}}))
		}
		for i, q := range p.queries {
			b = b.WithTarget(prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Datasource(source).Expr(q.expr).LegendFormat(q.legend).Instant())
		}
		return b
	}
	b := timeseries.NewPanelBuilder().Title(p.title).Description(p.about).Unit(p.unit).Datasource(source).Height(8).Span(width).Min(0).
		LineWidth(1).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true))
	if p.stack {
		b = b.Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	for i, q := range p.queries {
		b = b.WithTarget(prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Datasource(source).Expr(q.expr).LegendFormat(q.legend).Range())
	}
	return b
}

func variable(name, label, query string) cog.Builder[dashboard.VariableModel] {
	return dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(source).Query(dashboard.StringOrMap{String: &query}).
		Multi(true).IncludeAll(true).AllValue(".*").Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)
}

func main() {
	b := dashboard.NewDashboardBuilder("TAK-OS Ingress").Uid("tak-os-ingress").Tags([]string{"ingress", "tak-os"}).
		Description("Generated by dashboards/tools/generate. Each Pod counts for itself; the panels add them up.").
		Time("now-3h", "now").Refresh("30s").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")).
		WithVariable(variable("instance", "Pod", "label_values(tak_ingress_build_info, instance)")).
		WithVariable(variable("host", "Host", `label_values(tak_ingress_requests_total{instance=~"$instance"}, host)`))
	for _, r := range rows() {
		b = b.WithRow(dashboard.NewRowBuilder(r.title))
		for _, p := range r.panels {
			b = b.WithPanel(build(p))
		}
	}
	d, err := b.Build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(d); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
