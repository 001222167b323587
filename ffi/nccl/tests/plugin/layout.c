/* The structures of the plugin interface as a C compiler lays them out, beside what the plugin reports of its own, and
 * the symbols that NCCL looks for. The definitions here are doorbell's own, made from the list of fields.
 *
 * Usage: layout PLUGIN. It prints each disagreement, and how many numbers agree. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int result;
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef result (*profiler)(void **handle, int type, void *parent, int64_t plugin, void *data);

struct group4 { int ndevs; int devs[4]; };
struct group8 { int ndevs; int devs[8]; };
struct wishes { int trafficClass; };
struct traffic { int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer; };
struct attributes { struct traffic sendCommAttr, recvCommAttr; uint32_t op, algo, proto; };
struct device { int netDeviceType; int netDeviceVersion; void *handle; size_t size; int needsProxyProgress; };

struct properties8 {
    char *name, *pciPath; uint64_t guid; int ptrSupport, regIsGlobal, speed, port; float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
};
#define SINCE_9 \
    char *name, *pciPath; uint64_t guid; int ptrSupport, regIsGlobal, forceFlush, speed, port; float latency; \
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
struct properties9 { SINCE_9 struct group4 vProps; size_t maxP2pBytes, maxCollBytes; };
struct properties11 { SINCE_9 struct group4 vProps; size_t maxP2pBytes, maxCollBytes; int maxMultiRequestSize; };
struct properties12 {
    SINCE_9 struct group8 vProps; size_t maxP2pBytes, maxCollBytes; int maxMultiRequestSize; int16_t railId, planeId;
};

#define COMMON \
    result (*accept)(void *, void **, struct device **); \
    result (*regMr)(void *, void *, size_t, int, void **); \
    result (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **); \
    result (*deregMr)(void *, void *);
#define LATER \
    result (*iflush)(void *, int, void **, int *, void **, void **); \
    result (*test)(void *, int *, int *); \
    result (*closeSend)(void *); \
    result (*closeRecv)(void *); \
    result (*closeListen)(void *); \
    result (*getDeviceMr)(void *, void *, void **); \
    result (*irecvConsumed)(void *, int, void *);
#define SENDS_10 \
    result (*isend)(void *, void *, size_t, int, void *, void *, void **); \
    result (*irecv)(void *, int, void **, size_t *, int *, void **, void **, void **);

struct net8 {
    const char *name;
    result (*init)(logger);
    result (*devices)(int *);
    result (*getProperties)(int, struct properties8 *);
    result (*listen)(int, void *, void **);
    result (*connect)(int, void *, void **, struct device **);
    COMMON
    result (*isend)(void *, void *, int, int, void *, void **);
    result (*irecv)(void *, int, void **, int *, int *, void **, void **);
    LATER
};
struct net9 {
    const char *name;
    result (*init)(logger);
    result (*devices)(int *);
    result (*getProperties)(int, struct properties9 *);
    result (*listen)(int, void *, void **);
    result (*connect)(int, void *, void **, struct device **);
    COMMON
    result (*isend)(void *, void *, size_t, int, void *, void **);
    result (*irecv)(void *, int, void **, size_t *, int *, void **, void **);
    LATER
    result (*makeVDevice)(int *, struct group4 *);
};
struct net10 {
    const char *name;
    result (*init)(logger, profiler);
    result (*devices)(int *);
    result (*getProperties)(int, struct properties9 *);
    result (*listen)(int, void *, void **);
    result (*connect)(int, struct wishes *, void *, void **, struct device **);
    COMMON
    SENDS_10
    LATER
    result (*makeVDevice)(int *, struct group4 *);
};
#define NET_11(properties, group) \
    const char *name; \
    result (*init)(void **, uint64_t, struct wishes *, logger, profiler); \
    result (*devices)(int *); \
    result (*getProperties)(int, struct properties *); \
    result (*listen)(void *, int, void *, void **); \
    result (*connect)(void *, int, void *, void **, struct device **); \
    COMMON \
    SENDS_10 \
    LATER \
    result (*makeVDevice)(int *, struct group *); \
    result (*finalize)(void *); \
    result (*setNetAttr)(void *, struct attributes *);
struct net11 { NET_11(properties11, group4) };
struct net12 { NET_11(properties12, group8) };

struct row { const char *name; size_t number; };
#define SIZE(of, type) { of, sizeof(struct type) },
#define AT(of, type, field) { of "." #field, offsetof(struct type, field) },

#define PROPERTIES(of, type) \
    SIZE(of, type) AT(of, type, name) AT(of, type, pciPath) AT(of, type, guid) AT(of, type, ptrSupport) \
    AT(of, type, regIsGlobal) AT(of, type, speed) AT(of, type, port) AT(of, type, latency) \
    AT(of, type, maxComms) AT(of, type, maxRecvs) AT(of, type, netDeviceType) AT(of, type, netDeviceVersion)
#define PROPERTIES_9(of, type) \
    PROPERTIES(of, type) AT(of, type, forceFlush) AT(of, type, vProps) AT(of, type, maxP2pBytes) \
    AT(of, type, maxCollBytes)
#define NET(of, type) \
    SIZE(of, type) AT(of, type, name) AT(of, type, init) AT(of, type, devices) AT(of, type, getProperties) \
    AT(of, type, listen) AT(of, type, connect) AT(of, type, accept) AT(of, type, regMr) \
    AT(of, type, regMrDmaBuf) AT(of, type, deregMr) AT(of, type, isend) AT(of, type, irecv) \
    AT(of, type, iflush) AT(of, type, test) AT(of, type, closeSend) AT(of, type, closeRecv) \
    AT(of, type, closeListen) AT(of, type, getDeviceMr) AT(of, type, irecvConsumed)
#define NET_LATER(of, type) NET(of, type) AT(of, type, makeVDevice)
#define NET_LATEST(of, type) NET_LATER(of, type) AT(of, type, finalize) AT(of, type, setNetAttr)

static const struct row rows[] = {
    SIZE("ncclNetVDeviceProps_v9_t", group4) AT("ncclNetVDeviceProps_v9_t", group4, ndevs)
    AT("ncclNetVDeviceProps_v9_t", group4, devs)
    SIZE("ncclNetVDeviceProps_v12_t", group8) AT("ncclNetVDeviceProps_v12_t", group8, ndevs)
    AT("ncclNetVDeviceProps_v12_t", group8, devs)
    PROPERTIES("ncclNetProperties_v8_t", properties8)
    PROPERTIES_9("ncclNetProperties_v9_t", properties9)
    PROPERTIES_9("ncclNetProperties_v11_t", properties11)
    AT("ncclNetProperties_v11_t", properties11, maxMultiRequestSize)
    PROPERTIES_9("ncclNetProperties_v12_t", properties12)
    AT("ncclNetProperties_v12_t", properties12, maxMultiRequestSize)
    AT("ncclNetProperties_v12_t", properties12, railId) AT("ncclNetProperties_v12_t", properties12, planeId)
    SIZE("ncclNetCommConfig_t", wishes) AT("ncclNetCommConfig_t", wishes, trafficClass)
    SIZE("ncclNetAttr_t", attributes) AT("ncclNetAttr_t", attributes, sendCommAttr)
    AT("ncclNetAttr_t", attributes, recvCommAttr) AT("ncclNetAttr_t", attributes, op)
    AT("ncclNetAttr_t", attributes, algo) AT("ncclNetAttr_t", attributes, proto)
    SIZE("ncclNetDeviceHandle_t", device) AT("ncclNetDeviceHandle_t", device, netDeviceType)
    AT("ncclNetDeviceHandle_t", device, netDeviceVersion) AT("ncclNetDeviceHandle_t", device, handle)
    AT("ncclNetDeviceHandle_t", device, size) AT("ncclNetDeviceHandle_t", device, needsProxyProgress)
    NET("ncclNet_v8_t", net8)
    NET_LATER("ncclNet_v9_t", net9)
    NET_LATER("ncclNet_v10_t", net10)
    NET_LATEST("ncclNet_v11_t", net11)
    NET_LATEST("ncclNet_v12_t", net12)
};
#define ROWS ((int)(sizeof rows / sizeof rows[0]))

int main(int count, char **arguments)
{
    int wrong = 0, agreed = 0, reported = 0, row, place;
    const char *name;
    size_t number;
    void *plugin = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*layout)(int, const char **, size_t *);
    if (plugin == NULL) {
        fprintf(stderr, "%s\n", count == 2 ? dlerror() : "usage: layout PLUGIN");
        return 2;
    }
    *(void **)&layout = dlsym(plugin, "doorbell_nccl_layout");
    if (layout == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    for (row = 0; layout(row, &name, &number); row++) {
        reported++;
        for (place = 0; place < ROWS && strcmp(rows[place].name, name) != 0; place++) {}
        if (place == ROWS) {
            printf("%s: %zu in the plugin, and not in C\n", name, number);
            wrong++;
        } else if (rows[place].number != number) {
            printf("%s: %zu in the plugin, %zu in C\n", name, number, rows[place].number);
            wrong++;
        } else {
            agreed++;
        }
    }
    if (reported != ROWS) {
        printf("%d rows in the plugin, %d in C\n", reported, ROWS);
        wrong++;
    }
    for (row = 8; row <= 12; row++) {
        char symbol[32];
        const char *const *table;
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", row);
        table = dlsym(plugin, symbol);
        if (table == NULL || strcmp(*table, "doorbell") != 0) {
            printf("%s is not there, or not named doorbell\n", symbol);
            wrong++;
            continue;
        }
        /* All up to closeListen are needed of each version. */
        for (place = 1; place <= 16; place++) {
            if (table[place] == NULL) {
                printf("%s: slot %d is NULL\n", symbol, place);
                wrong++;
            }
        }
        printf("%s: %s\n", symbol, *table);
    }
    printf("%d numbers agree\n", agreed);
    return wrong != 0;
}
