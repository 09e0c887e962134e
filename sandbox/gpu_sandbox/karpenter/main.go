// karpenter is the released Karpenter whose cloud is the sandbox: for each machine it asks by HTTP, and the sandbox
// brings one, as a Node with pods that run, or refuses it in the words of a cloud.
//
//	karpenter --kubeconfig FILE --cloud URL --instance-types-file-path FILE [flags of Karpenter]
//
// Node classes and instance types are those of Karpenter's kwok provider; what a launch brings, and which machines there
// are, is said by the sandbox (cloud.py). It elects no leader, as it is the only one, and listens on no port.
//
// With CONTROLPLANE_PARENT_PID in the environment it dies with the thread that started it, however that one dies.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	_ "unsafe" // for setUpIndexers

	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/zapr"
	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

func main() {
	if parent := os.Getenv("CONTROLPLANE_PARENT_PID"); parent != "" {
		dieWith(parent)
	}
	if len(os.Args) < 2 || os.Args[1] != "karpenter" {
		fmt.Fprintln(os.Stderr, "usage: karpenter karpenter --kubeconfig FILE --cloud URL --instance-types-file-path FILE")
		os.Exit(2)
	}
	// Karpenter reads its flags from os.Args itself.
	os.Args = append(os.Args[:1], os.Args[2:]...)
	ours := &ourOptions{}
	options.Injectables = append(options.Injectables, ours)
	ctx := injection.WithOptionsOrDie(ctrl.SetupSignalHandler(), options.Injectables...)
	if err := run(ctx, ours); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type ourOptions struct{ kubeconfig, cloud string }

func (o *ourOptions) AddFlags(flags *options.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server")
	flags.StringVar(&o.cloud, "cloud", "", "where the sandbox is asked for machines")
}

func (o *ourOptions) Parse(*options.FlagSet, ...string) error { return nil }

func (o *ourOptions) ToContext(ctx context.Context) context.Context { return ctx }

func run(ctx context.Context, ours *ourOptions) error {
	op, err := newOperator(ctx, ours.kubeconfig)
	if err != nil {
		return err
	}
	instanceTypes, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		return err
	}
	undecorated := &sandbox{
		CloudProvider: kwok.NewCloudProvider(ctx, op.GetClient(), instanceTypes),
		client:        op.GetClient(),
		url:           ours.cloud,
		instanceTypes: instanceTypes,
	}
	provider := overlay.Decorate(undecorated, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), provider)
	for _, each := range controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, undecorated, cluster, op.InstanceTypeStore,
	) {
		if err := each.Register(ctx, op.Manager); err != nil {
			return err
		}
	}
	return op.Manager.Start(ctx)
}

// newOperator is Karpenter's own without its ports, which it opens to all the world.
func newOperator(ctx context.Context, kubeconfig string) (*operator.Operator, error) {
	logger := zapr.NewLogger(logging.NewLogger(ctx, "controller"))
	log.SetLogger(logger)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = float32(options.FromContext(ctx).KubeClientQPS)
	config.Burst = options.FromContext(ctx).KubeClientBurst
	made, err := ctrl.NewManager(config, ctrl.Options{
		Logger:                 logging.IgnoreDebugEvents(logger),
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		BaseContext: func() context.Context {
			return injection.WithOptionsOrDie(log.IntoContext(context.Background(), logger), options.Injectables...)
		},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {
				Field: fields.SelectorFromSet(fields.Set{"metadata.namespace": "kube-node-lease"}),
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	setUpIndexers(ctx, made)
	return &operator.Operator{
		Manager:             made,
		KubernetesInterface: kubernetes.NewForConfigOrDie(config),
		EventRecorder:       events.NewRecorder(made.GetEventRecorderFor(operator.AppName)),
		Clock:               clock.RealClock{},
		InstanceTypeStore:   nodeoverlay.NewInstanceTypeStore(),
	}, nil
}

//go:linkname setUpIndexers sigs.k8s.io/karpenter/pkg/operator.setupIndexers
func setUpIndexers(ctx context.Context, mgr manager.Manager)

// sandbox is a cloud whose machines are the sandbox's; what it does not say itself is as kwok has it.
type sandbox struct {
	*kwok.CloudProvider
	client        client.Client
	url           string
	instanceTypes []*cloudprovider.InstanceType
}

type machine struct {
	Name       string              `json:"name"`
	ProviderID string              `json:"providerID"`
	Claim      string              `json:"claim"`
	Labels     map[string]string   `json:"labels"`
	Taints     []corev1.Taint      `json:"taints"`
	Capacity   corev1.ResourceList `json:"capacity"`
}

type refusal struct {
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type offering struct {
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone"`
	CapacityType string `json:"capacityType"`
}

func (s *sandbox) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	if err := s.nodeClassIsReady(ctx, claim); err != nil {
		return nil, err
	}
	instanceType, chosen, err := s.cheapest(ctx, claim)
	if err != nil {
		return nil, err
	}
	wanted := machine{
		Claim:    claim.Name,
		Labels:   labels(claim, instanceType, chosen),
		Taints:   append(append([]corev1.Taint{v1.UnregisteredNoExecuteTaint}, claim.Spec.Taints...), claim.Spec.StartupTaints...),
		Capacity: instanceType.Capacity,
	}
	var launched machine
	if err := s.ask(ctx, http.MethodPost, "/machines", wanted, &launched); err != nil {
		return nil, err
	}
	created := launched.claimed()
	created.Status.Allocatable = instanceType.Allocatable()
	return created, nil
}

func (s *sandbox) nodeClassIsReady(ctx context.Context, claim *v1.NodeClaim) error {
	class := &v1alpha1.KWOKNodeClass{}
	err := s.client.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class)
	if apierrors.IsNotFound(err) {
		return cloudprovider.NewInsufficientCapacityError(fmt.Errorf("resolving node class, %w", err))
	} else if err != nil {
		return err
	}
	if ready := class.StatusConditions().Get(status.ConditionReady); ready.IsFalse() {
		return cloudprovider.NewNodeClassNotReadyError(errors.New(ready.Message))
	}
	return nil
}

// cheapest is the offering that a launch of the claim takes, as in kwok's provider.
func (s *sandbox) cheapest(ctx context.Context, claim *v1.NodeClaim) (*cloudprovider.InstanceType, *cloudprovider.Offering, error) {
	available, err := s.GetInstanceTypes(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	names := requirements.Get(corev1.LabelInstanceTypeStable)
	var instanceType *cloudprovider.InstanceType
	var chosen *cloudprovider.Offering
	for _, each := range available {
		if !names.Has(each.Name) {
			continue
		}
		for _, one := range each.Offerings.Available().Compatible(requirements) {
			if chosen == nil || one.Price < chosen.Price {
				instanceType, chosen = each, one
			}
		}
	}
	if chosen == nil {
		return nil, nil, cloudprovider.NewInsufficientCapacityError(errors.New("all requested instance types were unavailable during launch"))
	}
	return instanceType, chosen, nil
}

func labels(claim *v1.NodeClaim, instanceType *cloudprovider.InstanceType, chosen *cloudprovider.Offering) map[string]string {
	made := lo.Assign(map[string]string{}, claim.Labels)
	for _, each := range claim.Spec.Requirements {
		if len(each.Values) == 1 && each.Operator == corev1.NodeSelectorOpIn {
			made[each.Key] = each.Values[0]
		}
	}
	for _, requirements := range []scheduling.Requirements{instanceType.Requirements, chosen.Requirements} {
		for _, each := range requirements {
			if each.Len() == 1 && each.Operator() == corev1.NodeSelectorOpIn {
				made[each.Key] = each.Values()[0]
			}
		}
	}
	return made
}

func (m machine) claimed() *v1.NodeClaim {
	return &v1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: m.Claim, Labels: m.Labels},
		Status:     v1.NodeClaimStatus{ProviderID: m.ProviderID, Capacity: m.Capacity},
	}
}

func (s *sandbox) Delete(ctx context.Context, claim *v1.NodeClaim) error {
	return s.ask(ctx, http.MethodDelete, "/machines/"+nameOf(claim.Status.ProviderID), nil, nil)
}

func (s *sandbox) Get(ctx context.Context, providerID string) (*v1.NodeClaim, error) {
	var found machine
	if err := s.ask(ctx, http.MethodGet, "/machines/"+nameOf(providerID), nil, &found); err != nil {
		return nil, err
	}
	return found.claimed(), nil
}

func nameOf(providerID string) string { return providerID[strings.LastIndex(providerID, "/")+1:] }

func (s *sandbox) List(ctx context.Context) ([]*v1.NodeClaim, error) {
	var all []machine
	if err := s.ask(ctx, http.MethodGet, "/machines", nil, &all); err != nil {
		return nil, err
	}
	return lo.Map(all, func(each machine, _ int) *v1.NodeClaim { return each.claimed() }), nil
}

func (s *sandbox) GetInstanceTypes(ctx context.Context, _ *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	var unavailable []offering
	if err := s.ask(ctx, http.MethodGet, "/unavailable", nil, &unavailable); err != nil {
		return nil, err
	}
	return lo.Map(s.instanceTypes, func(each *cloudprovider.InstanceType, _ int) *cloudprovider.InstanceType {
		offered := &cloudprovider.InstanceType{}
		each.DeepCopyInto(offered)
		for _, one := range offered.Offerings {
			one.Available = !lo.ContainsBy(unavailable, func(gone offering) bool {
				return matches(gone.InstanceType, each.Name) && matches(gone.Zone, one.Zone()) && matches(gone.CapacityType, one.CapacityType())
			})
		}
		return offered
	}), nil
}

func matches(pattern, value string) bool { return pattern == "" || pattern == value }

// ask makes one call to the sandbox; what it refuses becomes the error that Karpenter knows it by.
func (s *sandbox) ask(ctx context.Context, method, path string, body, into any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		if into == nil {
			return nil
		}
		return json.NewDecoder(answer.Body).Decode(into)
	case http.StatusNotFound:
		return cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf("no machine %s", path))
	}
	var refused refusal
	if err := json.NewDecoder(answer.Body).Decode(&refused); err != nil {
		return fmt.Errorf("the sandbox answered %s %s with %s", method, path, answer.Status)
	}
	return refused.asError()
}

func (r refusal) asError() error {
	err := fmt.Errorf("creating instance, %s", r.Message)
	switch r.Kind {
	case "InsufficientCapacity":
		return cloudprovider.NewInsufficientCapacityError(errors.New(r.Message))
	case "NodeClassNotReady":
		return cloudprovider.NewNodeClassNotReadyError(errors.New(r.Message))
	case "CreateError":
		return cloudprovider.NewCreateError(err, r.Reason, r.Message)
	}
	return err
}

// dieWith asks the kernel for SIGKILL at the parent's death, then looks whether it had died before that.
func dieWith(parent string) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "prctl(PR_SET_PDEATHSIG):", errno)
		os.Exit(1)
	}
	if pid, err := strconv.Atoi(parent); err != nil || os.Getppid() != pid {
		fmt.Fprintf(os.Stderr, "the parent, process %s, is gone (now %d)\n", parent, os.Getppid())
		os.Exit(1)
	}
}
