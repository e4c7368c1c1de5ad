package conformance

import (
	"testing"

	suite "sigs.k8s.io/gateway-api/conformance"
)

// TestConformance takes the suite's own flags; KUBECONFIG names the cluster.
func TestConformance(t *testing.T) {
	suite.RunConformance(t)
}
