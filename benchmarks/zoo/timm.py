"""Models of timm: ``pip install --no-deps timm``, with pyyaml, huggingface_hub and safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import timm

from zoo.entry import Entry

NAMES = """
beit_base_patch16_224 64 img_size=64 depth=2
halonet_h1 256
botnet50ts_256 64 img_size=64
botnet26t_256 64 img_size=64
halonet50ts 256
mobileone_s1 64 img_size=64
gernet_s 64 img_size=64
gcresnext50ts 64 img_size=64
resnet51q 64 img_size=64
gernet_l 64 img_size=64
regnetz_d8_evos 64 img_size=64
resnet33ts 64 img_size=64
repvgg_a2 64 img_size=64
cait_xxs24_224 64 img_size=64 depth=2
cait_xxs36_384 64 img_size=64 depth=2
cait_s24_224 64 img_size=64 depth=2
coat_tiny 64 img_size=64
coat_mini 64 img_size=64
coat_small 64 img_size=64
convit_tiny 64 img_size=64 depth=2
convit_small 64 img_size=64 depth=2
convmixer_768_32 64
convmixer_1536_20 64
convnext_zepto_rms 64
convnextv2_atto 64
convnext_atto_ols 64
convnext_pico 64
convnextv2_small 64
cpubone_nano 64
cpubone_b1_bfrobust 64
cpubone_t0 64
crossvit_tiny_240 64
crossvit_9_dagger_240 64
crossvit_15_dagger_408 64
csatv2 64
csatv2_21m 64
cs3darknet_focus_s 64
cs3sedarknet_x 64
darknet17 64
cspresnet50d 64
cspdarknet53 64
cspnext_tiny 64
cspnext_l 64
davit_tiny 64
davit_small 64
deepseek_vit_412m 546 depth=2
deit_tiny_patch16_224 64 img_size=64 depth=2
deit_small_distilled_patch16_224 64 img_size=64 depth=2
deit3_small_patch16_384 64 img_size=64 depth=2
densenet121 64
densenet161 64
dla46x_c 64
dla102 64
dla60x 64
dpn48b 64
dpn68 64
edgenext_xx_small 64
edgenext_x_small 64
efficientformer_l1 224
efficientformer_l3 224
efficientformerv2_s0 64 img_size=64
efficientformerv2_l 64 img_size=64
mobilenetv2_035 64
efficientnet_cc_b0_4e 64
mobilenetv2_050 64
efficientnet_b6 64
efficientnet_b3_pruned 64
efficientnet_lite0 64
efficientnet_b3_gn 64
efficientnet_blur_b0 64
mobilenet_edgetpu_v2_l 64
efficientnet_b4 64
mobilenetv2_075 64
mnasnet_100 64
efficientnet_b1 64
efficientvim_m1 64
efficientvim_m2 64
efficientvim_m4_dist 64
efficientvit_b0 64
efficientvit_b2 64
efficientvit_m0 64 img_size=64
efficientvit_m5 64 img_size=64
eva02_tiny_patch14_224 64 img_size=64 depth=2
eva02_small_patch14_224 64 img_size=64 depth=2
fasternet_t0 64
fasternet_t1 64
fastvit_t8 64
fastvit_s12 64
fastvit_sa24 64
focalnet_tiny_srf 64
focalnet_small_lrf 64
gcvit_xxtiny 64 img_size=64
gcvit_tiny 64 img_size=64
gemma4_vit_167m 64 img_size=64 depth=2
ghostnet_050 64
ghostnet_100 64
ghostnetv3_100 64
hardcorenas_b 64
hardcorenas_f 64
hgnetv2_b0 64
hgnet_tiny 64
hgnet_small 64
hiera_tiny_224 64 img_size=64
hiera_small_abswin_256 64 img_size=64
sam2_hiera_tiny 64
hieradet_small 64
hrnet_w18_small 64
hrnet_w32 64
hrnet_w18_ssld 64
iformer_t 64
iformer_l2_distilled 64
iformer_l_distilled 64
inception_next_atto 64
inception_next_small 64
inception_resnet_v2 96
inception_v3 96
inception_v4 96
lcnetv2_small 64
lcnetv2_large 64
levit_128s 64 img_size=64
levit_128 64 img_size=64
levit_384_s8 64 img_size=64
levit_conv_256 64 img_size=64
lowformer_b0 64
lowformer_e2 64
lowformer_e3 64
mambaout_femto 64
mambaout_tiny 64
maxvit_pico_rw_256 64 img_size=64
maxxvitv2_nano_rw_256 64 img_size=64
coatnet_rmlp_nano_rw_224 64 img_size=64
maxvit_nano_rw_256 64 img_size=64
coatnet_pico_rw_224 64 img_size=64
maxvit_tiny_tf_224 64 img_size=64
poolformerv2_s12 64
poolformer_m36 64
convformer_s18 64
caformer_s36 64
gmlp_ti16_224 64 img_size=64
resmlp_12_224 64 img_size=64
mixer_b16_224 64 img_size=64
mobilenetv3_small_050 64
fbnetv3_g 64
mobilenetv4_conv_large 64
mobilenetv4_conv_small_050 64
lcnet_050 64
mobilenetv4_conv_small_035 64
mobilenetv5_base 64
mobilevit_xxs 64 img_size=64
mobilevitv2_200 64 img_size=64
mobilevitv2_150 64 img_size=64
mvitv2_tiny 64 img_size=64
mvitv2_base 64 img_size=64
naflexvit_base_patch16_parfac_gap 64 img_size=64 depth=2
nasnetalarge 64
nest_tiny 64 img_size=64
nest_small_jx 64 img_size=64
nextvit_small 64
nextvit_large 64
nf_regnet_b0 64
nf_regnet_b5 64
nf_resnet50 64
eca_nfnet_l0 64
nf_ecaresnet101 64
pit_ti_224 64 img_size=64
pit_s_distilled_224 64 img_size=64
pnasnet5large 64
pvt_v2_b0 64
pvt_v2_b3 64
qwen3_vit_88m 64 img_size=64 depth=2
rdnet_tiny 64
rdnet_small 64
regnetx_002 64
regnetv_040 64
regnety_040 64
regnetv_064 64
regnetz_040_h 64
regnety_064 64
repghostnet_050 64
repghostnet_200 64
repghostnet_100 64
repvit_m1 64 img_size=64
repvit_m0_9 64 img_size=64
repvit_m2 64 img_size=64
res2next50 64
res2net50_48w_2s 64
res2net50d 64
resnest14d 64
resnest101e 64
resnet10t 64
resnet101 64
resnet50 64
ecaresnet50d_pruned 64
resnetaa34d 64
resnet18 64
ecaresnet101d_pruned 64
resnet26t 64
resnet34d 64
resnetaa50 64
resnetv2_18 64
resnetv2_101d 64
resnetv2_34d 64
resnetv2_50t 64
rexnet_100 64
rexnetr_200 64
rexnetr_100 64
selecsls42 64
selecsls60 64
legacy_seresnet18 64
legacy_seresnet34 64
legacy_seresnet101 64
sequencer2d_s 64 img_size=64
sequencer2d_m 64 img_size=64
shvit_s1 64
flexivit_small 64 img_size=64 depth=2
samvit_base_patch16_224 64 img_size=64 depth=2
ese_vovnet19b_slim_dw 64
ese_vovnet39b_evos 64
ese_vovnet57b 64
legacy_xception 64
"""
"""Models of all families, with the size of images and the arguments with which they are small."""


def entries() -> Iterator[Entry]:
    """Models of all families."""
    for line in NAMES.strip().splitlines():
        name, size, *options = line.split()
        numbers = {key: int(number) for key, number in (option.split("=") for option in options)}
        n = int(size)
        yield Entry(f"timm {name}", partial(timm.create_model, name, num_classes=10, **numbers), ((4, 3, n, n),))
